package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/dns"
)

// newDNS builds `fairway dns`, the cluster's DNS server.
func newDNS(e env) *cobra.Command {
	var cfg dns.Config
	var show bool
	var allow []string
	c := &cobra.Command{
		Use:   "dns",
		Short: "Answer DNS for the cluster's Services and pods (CoreDNS)",
		Long: `Answer DNS for the cluster's Services and pods, with CoreDNS.

Without --conf it reads ` + dns.DefaultCorefile + ` if that exists, else it
uses the Corefile that --show-corefile prints. A Corefile may use these plugins:
` + strings.Join(dns.Plugins(), " ") + ".",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg.Log = newLog(e.stderr, slog.LevelInfo)
			cfg.Self = dns.ServiceIP()
			cidrs, err := dns.ClusterCIDRs()
			if err != nil {
				return err
			}
			for _, text := range allow {
				p, err := netip.ParsePrefix(text)
				if err != nil {
					return fmt.Errorf("--allow-from: %w [write a prefix, as 203.0.113.0/24]", err)
				}
				cidrs = append(cidrs, p.Masked())
			}
			cfg.AllowFrom = cidrs
			s := dns.New(cfg)
			if !show {
				return s.Run(c.Context())
			}
			text, err := s.Corefile()
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(e.stdout, text)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Corefile, "conf", "", "Corefile to serve (default "+dns.DefaultCorefile+" if it exists, else built in)")
	f.StringSliceVar(&allow, "allow-from", nil, "Prefixes of clients with public addresses that are answered too: nodes, pods outside $CLUSTER_CIDR (built-in Corefile only)")
	f.Uint16Var(&cfg.Port, "dns-port", 53, "port for server blocks that name none")
	f.StringVar(&cfg.ClusterDomain, "cluster-domain", "cluster.local", "zone of the cluster")
	f.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "kubeconfig file, to run outside the cluster")
	f.StringVar(&cfg.Master, "master", "", "URL of the API server, if it needs no credentials")
	f.BoolVar(&show, "show-corefile", false, "print the Corefile that would be served, and end")
	return c
}
