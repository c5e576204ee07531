// Package dns is `fairway dns`: flags for the cluster's DNS server in internal/dns. `--check` tests a Corefile.
package dns

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/dns"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// New builds `fairway dns`, the cluster's DNS server.
func New(e command.Env) *cobra.Command {
	var cfg dns.Config
	var show bool
	var allow []string
	var check string
	var format *command.LogFormat
	var outside zoneOptions
	c := &cobra.Command{
		Use:   "dns",
		Short: "Answer DNS for the cluster's Services and pods (CoreDNS)",
		Long: `Answer DNS for the cluster's Services and pods, with CoreDNS.

Without --conf it reads ` + dns.DefaultCorefile + ` (the ConfigMap fairway-dns) or
` + dns.AdoptedCorefile + ` (the ConfigMap coredns) if one exists, else it uses the
Corefile that --show-corefile prints. A Corefile may use these plugins:
` + strings.Join(dns.Plugins(), " ") + `.

With --zone it also answers, on a port of its own, for the names of LoadBalancer Services, Ingresses
and routes outside the cluster (docs/names.md).`,
		Example: `  kubectl -n kube-system get configmap coredns -o jsonpath='{.data.Corefile}' | fairway dns --check -
  fairway dns --conf Corefile --dns-port 1053
  fairway dns --zone example.org --zone-transfer-to 192.0.2.54`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if cfg.Log, err = format.Logger(e.Stderr, "dns"); err != nil {
				return err
			}
			cfg.Self = dns.ServiceIP()
			allowed, err := allowedClients(allow)
			if err != nil {
				return err
			}
			cfg.AllowFrom = allowed
			if err := outside.check(&cfg); err != nil {
				return err
			}
			if check != "" {
				return checkCorefile(e, cfg, check)
			}
			if !show {
				return outside.run(c.Context(), e, cfg)
			}
			s := dns.New(cfg)
			text, err := s.Corefile()
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(e.Stdout, text)
			return err
		},
	}
	format = command.NewLogFormat(c)
	command.AddSettings(c, settings.DNS)
	f := c.Flags()
	f.StringVar(&cfg.Corefile, "conf", "", "Corefile to serve, a `file` (default: that of a ConfigMap if there is one, else built in)")
	f.StringSliceVar(&allow, "allow-from", nil, settings.Usage(settings.DNS, "allow-from"))
	f.Uint16Var(&cfg.Port, "dns-port", 53, "`port` for server blocks that name none")
	f.StringVar(&cfg.ClusterDomain, "cluster-domain", "cluster.local", settings.Usage(settings.DNS, "cluster-domain"))
	outside.addFlags(f)
	f.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "kubeconfig `file`, to run outside the cluster")
	f.StringVar(&cfg.Master, "master", "", "`URL` of the API server, if it needs no credentials")
	f.BoolVar(&show, "show-corefile", false, "print the Corefile that would be served, and end")
	f.StringVar(&check, "check", "", "print what this Corefile (`file`, - for standard input) would serve and what cannot be served, and end with status 1 if it cannot")
	return c
}

// allowedClients returns the clients with public addresses that get answers: pods, and the prefixes of a flag.
func allowedClients(flags []string) ([]netip.Prefix, error) {
	all, err := dns.ClusterCIDRs()
	if err != nil {
		return nil, err
	}
	for _, text := range flags {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--allow-from: %w [write a prefix, as 203.0.113.0/24]", err)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// checkCorefile is `fairway dns --check`.
func checkCorefile(e command.Env, cfg dns.Config, path string) error {
	var text []byte
	var err error
	if path == "-" {
		path = "stdin"
		text, err = io.ReadAll(e.Stdin)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return fmt.Errorf("read Corefile: %w", err)
	}
	report := dns.Check(cfg, path, text)
	if _, err := report.WriteTo(e.Stdout); err != nil {
		return err
	}
	if len(report.Errors) > 0 {
		return command.ExitError(1)
	}
	return nil
}
