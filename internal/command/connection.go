package command

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/settings"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// AddConnection adds the flags of a command that a person runs against a cluster. Their defaults are kubectl's.
func AddConnection(e Env, f *pflag.FlagSet, c *kube.Connection) {
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig `file` (default $KUBECONFIG or ~/.kube/config; in a pod its service account)")
	f.StringVar(&c.Context, "context", "", "`name` of the context in the kubeconfig (default its current one)")
	f.StringVar(&c.Master, "master", "", "`url` of the API server, instead of the kubeconfig's")
	f.BoolVar(&c.AllowHTTP, "allow-http-api-server", false, "Accept an API server without TLS that is not on this machine")
	c.UserAgent, c.Person = e.UserAgent(""), true
	c.QPS, c.Burst = 50, 100 // one person waits for the answers
}

// AddPodConnection adds the flags of a program that runs in a pod or as a service.
func AddPodConnection(e Env, part string, f *pflag.FlagSet, c *kube.Connection) {
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "How to reach the API server: `file`; without it the pod's service account is used")
	f.StringVar(&c.Master, "master", "", "`URL` of the API server, instead of the one that the kubeconfig or the service account names")
	f.BoolVar(&c.AllowHTTP, "allow-http-api-server", false, "Accept an API server without TLS that is not on this machine")
	c.UserAgent = e.UserAgent(part)
}

// A LoadBalancerScope names the load-balancer objects of a command.
type LoadBalancerScope struct {
	Namespace string // of the metallb.io objects
	Class     string // loadBalancerClass of the Services; empty: Services without a class
}

// AddLoadBalancerScope adds the flags of a LoadBalancerScope. namespace is the name of the namespace's flag.
func AddLoadBalancerScope(f *pflag.FlagSet, namespace string, s *LoadBalancerScope) {
	f.StringVar(&s.Namespace, namespace, "metallb-system", "The `namespace` where the objects of metallb.io count")
	f.StringVar(&s.Class, "lb-class", "", settings.Usage(settings.Speaker, "lb-class"))
}

// AddPrefixes adds a flag of CIDRs with commas between them. AddSettings gives it the setting key.
func AddPrefixes(f *pflag.FlagSet, flag, key, usage string) func() ([]netip.Prefix, error) {
	text := f.String(flag, "", usage+" (default $"+key+")")
	return func() (all []netip.Prefix, err error) {
		for one := range strings.FieldsFuncSeq(*text, func(r rune) bool { return r == ',' || r == ' ' }) {
			p, err := netip.ParsePrefix(one)
			if err != nil {
				return nil, fmt.Errorf("--%s: %w [write prefixes with commas between them, as 10.244.0.0/16]", flag, err)
			}
			all = append(all, p.Masked())
		}
		return all, nil
	}
}

// AddClusterCIDR adds the flag --cluster-cidr, which is the agents' setting.
func AddClusterCIDR(f *pflag.FlagSet) func() ([]netip.Prefix, error) {
	return AddPrefixes(f, "cluster-cidr", "CLUSTER_CIDR", "Pod `cidrs` of the cluster. No node's podCIDR outside of them counts")
}

// CompletionTimeout limits how long a shell waits for completions.
const CompletionTimeout = 2 * time.Second

// CompleteNodes offers the node names that are not given yet.
func CompleteNodes(c *kube.Connection, namespace *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), CompletionTimeout)
		defer cancel()
		agents, err := kube.ConnectAgents(*c, *namespace)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		pods, err := agents.List(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, p := range pods {
			if !slices.Contains(given, p.Node) {
				names = append(names, p.Node)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// OrHostname sets an empty name to the host's name. flag is the name's flag, for the error.
func OrHostname(name *string, flag string) error {
	if *name != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the host's name: %w [give %s]", err, flag)
	}
	*name = host
	return nil
}

// Peers converts the cluster's nodes for the pod network.
func Peers(nodes []kube.Node) (all []plan.Peer) {
	for _, p := range nodes {
		all = append(all, plan.Peer{Name: p.Name, Created: p.Created, Addrs: p.Addrs, PodCIDRs: p.PodCIDRs, Key: plan.ParseKey(p.WireGuardKey)})
	}
	return all
}
