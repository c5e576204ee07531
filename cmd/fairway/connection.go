package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/kube"
)

// addConnection adds the flags of a command that a person runs against a cluster. Without
// them it goes where kubectl would.
func addConnection(f *pflag.FlagSet, c *kube.Connection) {
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig `file` (default $KUBECONFIG or ~/.kube/config; in a pod its service account)")
	f.StringVar(&c.Context, "context", "", "`name` of the context in the kubeconfig (default its current one)")
	f.StringVar(&c.Master, "master", "", "`url` of the API server, instead of the kubeconfig's")
	f.BoolVar(&c.AllowHTTP, "allow-http-api-server", false, "Accept an API server without TLS that is not on this machine")
	c.UserAgent, c.Person = userAgent, true
	c.QPS, c.Burst = 50, 100 // one person at a time, who waits
}

// completionTimeout is how long a shell waits for what it can offer.
const completionTimeout = 2 * time.Second

// completeNodes offers the names of nodes that are not given yet.
func completeNodes(c *kube.Connection, namespace *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), completionTimeout)
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

// orHostname sets what names this machine, if nothing was given, to the host's name. flag is what gives it.
func orHostname(name *string, flag string) error {
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
