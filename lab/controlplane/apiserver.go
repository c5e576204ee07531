package controlplane

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// parse sets the flags of a component.
func parse(name string, sets cliflag.NamedFlagSets, f flags) error {
	all := pflag.NewFlagSet(name, pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		all.AddFlagSet(set)
	}
	if err := all.Parse(f.args()); err != nil {
		return fmt.Errorf("parse flags: %w", err)
	}
	return nil
}

func (c Config) runAPIServer(ctx context.Context) error {
	s := options.NewServerRunOptions()
	if err := parse("kube-apiserver", s.Flags(), c.apiServerFlags()); err != nil {
		return err
	}
	if err := s.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return fmt.Errorf("set feature gates: %w", err)
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	completed, err := s.Complete(ctx)
	if err != nil {
		return fmt.Errorf("complete options: %w", err)
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return fmt.Errorf("validate options: %w", utilerrors.NewAggregate(errs))
	}
	return app.Run(ctx, completed)
}

func (c Config) apiServerFlags() flags {
	f := flags{
		"etcd-servers":      etcdURL,
		"advertise-address": c.Address.String(),
		"bind-address":      c.anyAddress(),
		"secure-port":       strconv.Itoa(c.Port),
		"cert-dir":          c.Dir,

		"tls-cert-file":        c.pki(CertAPIServer + ".crt"),
		"tls-private-key-file": c.pki(CertAPIServer + ".key"),
		// This flag makes the API server create the ConfigMap extension-apiserver-authentication, which kubelets and
		// controllers wait for.
		"client-ca-file":                   c.pki("ca.crt"),
		"requestheader-client-ca-file":     c.pki("ca.crt"),
		"requestheader-allowed-names":      "front-proxy-client",
		"service-account-issuer":           "https://kubernetes.default.svc.cluster.local",
		"service-account-key-file":         c.pki("service-account.pub"),
		"service-account-signing-key-file": c.pki("service-account.key"),

		"kubelet-certificate-authority": c.pki("ca.crt"),
		"kubelet-client-certificate":    c.pki(CertKubeletClient + ".crt"),
		"kubelet-client-key":            c.pki(CertKubeletClient + ".key"),
		// No DNS has the names of nodes, so exec, logs and port-forward must use addresses.
		"kubelet-preferred-address-types": "InternalIP",

		"authorization-mode":       "Node,RBAC",
		"enable-admission-plugins": "NodeRestriction",
		"allow-privileged":         "true",
		"service-cluster-ip-range": join(c.Services),
		"profiling":                "false",
		// The control plane has no route to addresses of Services, so it must reach an API behind a Service at the
		// Service's endpoints.
		"enable-aggregator-routing": "true",
	}
	if c.Metrics {
		f["proxy-client-cert-file"] = c.pki(CertFrontProxy + ".crt")
		f["proxy-client-key-file"] = c.pki(CertFrontProxy + ".key")
	}
	return f
}

// anyAddress returns the wildcard address to listen on. It returns "::" only for a lab with IPv6, because a kernel
// without IPv6 rejects "::".
func (c Config) anyAddress() string {
	if len(c.Pods) == 1 && c.Address.Is4() {
		return "0.0.0.0"
	}
	return "::"
}
