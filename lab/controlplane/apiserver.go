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

// parse gives the components' own flags their values.
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
		// Without it there is no ConfigMap extension-apiserver-authentication,
		// on which kubelets and controllers wait.
		"client-ca-file":                   c.pki("ca.crt"),
		"requestheader-client-ca-file":     c.pki("ca.crt"),
		"requestheader-allowed-names":      "front-proxy-client",
		"service-account-issuer":           "https://kubernetes.default.svc.cluster.local",
		"service-account-key-file":         c.pki("service-account.pub"),
		"service-account-signing-key-file": c.pki("service-account.key"),

		"kubelet-certificate-authority": c.pki("ca.crt"),
		"kubelet-client-certificate":    c.pki(CertKubeletClient + ".crt"),
		"kubelet-client-key":            c.pki(CertKubeletClient + ".key"),
		// Nodes have no name in any DNS: exec, logs and port-forward must go
		// by address.
		"kubelet-preferred-address-types": "InternalIP",

		"authorization-mode":       "Node,RBAC",
		"enable-admission-plugins": "NodeRestriction",
		"allow-privileged":         "true",
		"service-cluster-ip-range": join(c.Services),
		"profiling":                "false",
		// Nothing here carries addresses of Services, so that APIs behind a Service are reached at its endpoints.
		"enable-aggregator-routing": "true",
	}
	if c.Metrics {
		f["proxy-client-cert-file"] = c.pki(CertFrontProxy + ".crt")
		f["proxy-client-key-file"] = c.pki(CertFrontProxy + ".key")
	}
	return f
}

// anyAddress is where to listen: on both families only where there may be two,
// since a kernel without IPv6 has no "::".
func (c Config) anyAddress() string {
	if len(c.Pods) == 1 && c.Address.Is4() {
		return "0.0.0.0"
	}
	return "::"
}
