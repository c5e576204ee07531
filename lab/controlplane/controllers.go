package controlplane

import (
	"context"
	"fmt"
	"net/netip"

	cmapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	cmoptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	schedapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	schedoptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"k8s.io/client-go/tools/cache"
)

func (c Config) runControllerManager(ctx context.Context) error {
	s, err := cmoptions.NewKubeControllerManagerOptions()
	if err != nil {
		return fmt.Errorf("make options: %w", err)
	}
	known, off, aliases := cmapp.KnownControllers(), cmapp.ControllersDisabledByDefault(), cmapp.ControllerAliases()
	sets := s.Flags(known, off, aliases)
	s.ParsedFlags = &sets
	if err := parse("kube-controller-manager", sets, c.controllerManagerFlags()); err != nil {
		return err
	}
	config, err := s.Config(ctx, known, off, aliases)
	if err != nil {
		return fmt.Errorf("read options: %w", err)
	}
	return cmapp.Run(ctx, config.Complete())
}

func (c Config) controllerManagerFlags() flags {
	conf := Kubeconfig(c.PKI, CertControllerManager)
	f := flags{
		"kubeconfig":                       conf,
		"authentication-kubeconfig":        conf,
		"authorization-kubeconfig":         conf,
		"bind-address":                     "127.0.0.1",
		"tls-cert-file":                    c.pki(CertControllerManager + ".crt"), // without a file, it makes RSA keys
		"tls-private-key-file":             c.pki(CertControllerManager + ".key"),
		"leader-elect":                     "false",
		"use-service-account-credentials":  "true",
		"root-ca-file":                     c.pki("ca.crt"),
		"service-account-private-key-file": c.pki("service-account.key"),
		"cluster-signing-cert-file":        c.pki("ca.crt"),
		"cluster-signing-key-file":         c.pki("ca.key"),
		"allocate-node-cidrs":              "true",
		"cluster-cidr":                     join(c.Pods),
		"service-cluster-ip-range":         join(c.Services),
		"profiling":                        "false",
		// At its start the program requests a service account and a token for each of its controllers. With the default
		// rate that takes five seconds.
		"kube-api-qps":   "1000",
		"kube-api-burst": "1000",
	}
	// kube-controller-manager refuses a mask for a family that the cluster lacks. In a dual-stack cluster it refuses
	// the general mask.
	if len(c.Pods) == 1 {
		f["node-cidr-mask-size"] = nodeMask(c.Pods[0])
	} else {
		f["node-cidr-mask-size-ipv4"] = "24"
		f["node-cidr-mask-size-ipv6"] = "64"
	}
	return f
}

func nodeMask(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "64"
	}
	return "24"
}

func (c Config) runScheduler(ctx context.Context) error {
	opts := schedoptions.NewOptions()
	conf := Kubeconfig(c.PKI, CertScheduler)
	err := parse("kube-scheduler", *opts.Flags, flags{
		"kubeconfig":                conf,
		"authentication-kubeconfig": conf,
		"authorization-kubeconfig":  conf,
		"bind-address":              "127.0.0.1",
		"tls-cert-file":             c.pki(CertScheduler + ".crt"),
		"tls-private-key-file":      c.pki(CertScheduler + ".key"),
		"leader-elect":              "false",
		"profiling":                 "false",
		"kube-api-qps":              "1000",
		"kube-api-burst":            "1000",
	})
	if err != nil {
		return err
	}
	if opts.InformerName, err = cache.NewInformerName("kube-scheduler"); err != nil {
		return fmt.Errorf("name informers: %w", err)
	}
	config, scheduler, err := schedapp.Setup(ctx, opts)
	if err != nil {
		return fmt.Errorf("read options: %w", err)
	}
	return schedapp.Run(ctx, config, scheduler)
}
