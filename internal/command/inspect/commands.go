// Package inspect has the commands that show what a node does for Services and policies: diff, dump, doctor, explain,
// policy. This file has their names, help texts and flags. Each other file has one command. They change nothing.
package inspect

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/service"
)

// NewDiff builds `fairway diff`.
func NewDiff(e command.Env) *cobra.Command {
	return answers(e, &cobra.Command{
		Use:   "diff",
		Short: "Compare what this node's kernel does for Services with what it should do",
		Long: `Compare what this node's kernel does for Services with what it should do.

Decides as the agent would: in the agent's pod with the flags that the agent runs with,
elsewhere with the settings in the ConfigMap fairway-agent; a flag given here wins. It changes nothing. As with
diff(1) the exit status is 0 for no difference, 1 for some and 2 for an error; lines with - are in the
kernel and should not be, lines with + are missing.`,
		Example: `  kubectl -n kube-system exec ds/fairway-agent -- fairway diff
  fairway diff --kubeconfig ~/.kube/config --cluster-cidr 10.244.0.0/16`,
		Args: cobra.NoArgs,
	}, diff)
}

// NewDoctor builds `fairway doctor`.
func NewDoctor(e command.Env) *cobra.Command {
	return answers(e, &cobra.Command{
		Use:        "doctor",
		SuggestFor: []string{"check", "preflight", "precheck"},
		Short:      "Check this node for what keeps an agent from working, before or after it is installed",
		Long: `Check this node for what keeps an agent from working, before or after it is installed.

It asks the kernel which modes it can do, and looks at programs, the connection table, forwarding,
ports, other service proxies and firewalls, the MTU of pods' packets, and the API server: whether it
answers, is reached without a Service, agrees about the time and grants what an agent reads. It
changes nothing. Without root it says what it skipped. In the agent's pod it uses the agent's flags.

Exit status: 0 if an agent works here, 1 if a check is a failure, 2 if the checks could not run.`,
		Example: `  sudo fairway doctor
  sudo fairway doctor --proxy-mode iptables --kubeconfig /etc/kubernetes/kubelet.conf
  kubectl -n kube-system exec ds/fairway-agent -- fairway doctor -o json`,
		Args: cobra.NoArgs,
	}, examine)
}

// answers builds a command that decides as the agent does. It prints f's result in the format of -o. The exit status is
// 1 if f reports false, and 2 after an error.
func answers(e command.Env, c *cobra.Command, f func(context.Context, *agent.Tool) (found output.Value, ok bool, err error)) *cobra.Command {
	format := addFormat(c)
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, _ []string) error {
		found, ok, err := f(ctx, a)
		if err != nil {
			return err
		}
		if err = output.Write(e.Stdout, *format, found); err == nil && !ok {
			err = command.ExitError(1)
		}
		return err
	})
	c.RunE = command.ErrorStatus(2, c.RunE)
	return c
}

// addFormat adds the flag -o.
func addFormat(c *cobra.Command) *output.Format {
	format := output.Table
	c.Flags().VarP(&format, "output", "o", "table, wide, json or yaml")
	command.Complete(c, "output", output.Formats()...)
	return &format
}

// NewDump builds `fairway dump`.
func NewDump(e command.Env) *cobra.Command {
	var q dumpQuestion
	var format *output.Format
	c := &cobra.Command{
		Use:        "dump",
		SuggestFor: []string{"list", "services", "service", "get", "show"},
		Short:      "Show what the kernel of this node does for Services, read back from it",
		Long: `Show what the kernel of this node does for Services, read back from it.

Run it on the node as root, or from your machine with --node. -o wide has a line for each endpoint,
and more columns. Exit status: 0, or 1 for an error; that no mode has rules here is an error.`,
		Args: cobra.NoArgs,
		Example: `  fairway dump
  fairway dump --node node-2
  fairway dump -n default -o wide
  fairway dump --service default/backend-service --objects
  fairway dump --proxy-mode iptables -o json
  fairway dump --program       the constant ruleset`,
		RunE: func(c *cobra.Command, _ []string) error { return q.run(c.Context(), e, *format) },
	}
	format = addFormat(c)
	f := c.Flags()
	f.BoolVar(&q.program, "program", false, "Print the program that the kernel runs, as nft text")
	f.StringVar(&q.only, "service", "", "Only this Service: `namespace/name`")
	f.StringVarP(&q.selection.Namespace, "namespace", "n", "", "Only Services of this `namespace`")
	f.BoolVar(&q.selection.Objects, "objects", false, "With --service: also the kernel objects behind each address")
	f.StringVar(&q.mode, "proxy-mode", datapath.Auto, "Rules of this `mode`: "+datapath.ModeNames()+"; auto: every mode found on this node")
	command.Complete(c, "proxy-mode", append(datapath.Modes(), datapath.Auto)...)
	if err := c.RegisterFlagCompletionFunc("service", offerServices); err != nil {
		panic(err) // the flag does not exist
	}
	new(onNode).add(e, c)
	return c
}

// NewExplain builds `fairway explain`.
func NewExplain(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:        "explain NAMESPACE/SERVICE | KIND/NAMESPACE/NAME",
		SuggestFor: []string{"describe", "why", "trace"},
		Short:      "Say what becomes of packets to a Service, or of a request to a gateway, and why",
		Long: `Say what becomes of packets to a Service on a node, and why each endpoint is used or not.

Reads the API server once and decides as the agent does; the kernel is not asked (see
fairway dump and fairway diff for that). In the agent's pod it starts from the flags that
the agent runs with, elsewhere from the ConfigMap fairway-agent, and --node names the node. A flag given here wins.

With gateway/, httproute/, grpcroute/ or ingress/NAMESPACE/NAME it says whether the object is attached,
or why it is refused. With --request, which listener, rule, filters and backends a request gets, and
why it gets no other rule, as fairway gateway decides it. Run it outside of the agent's pod: it needs
the rights to list routes, Ingresses, Services and endpoints, and to get the Secrets that they name.`,
		Example: `  fairway explain default/web
  fairway explain default/web --from outside
  fairway explain default/web -o json --node node-2
  fairway explain gateway/shop/front --request 'GET https://shop.example/cart'
  fairway explain ingress/shop/web --request http://shop.example/ --header 'Cookie: canary=always'`,
		Args: cobra.ExactArgs(1),
	}
	from := c.Flags().String("from", "", "only packets from a `place`: pod, node (itself), outside (the cluster)")
	request := c.Flags().String("request", "", "a `request` to a gateway or a route: 'GET https://shop.example/cart'")
	headers := c.Flags().StringArray("header", nil, "a `header` of the request, as 'Name: value'; may be given several times")
	format := addFormat(c)
	command.Complete(c, "from", string(service.FromPod), string(service.FromNode), string(service.FromOutside))
	c.ValidArgsFunction = servicesHereOr(e)
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, args []string) error {
		question, isRoute, err := parseRouteQuestion(args[0], *request, *headers)
		if err != nil {
			return err
		}
		if isRoute {
			answer, err := explainRoute(ctx, a, question)
			if err != nil {
				return err
			}
			return output.Write(e.Stdout, *format, answer)
		}
		report, err := explain(ctx, a, args[0], *from)
		if err != nil {
			return err
		}
		return output.Write(e.Stdout, *format, report)
	})
	return c
}

// NewPolicy builds `fairway policy`.
func NewPolicy(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy NAMESPACE/POD",
		Short: "Say what NetworkPolicies allow a pod, by which policy and rule",
		Long: `Say what NetworkPolicies allow a pod, by which policy and rule.

With --from or --to, what they say of packets from or to a peer: a pod (NAMESPACE/POD), an
address, or a Service (service/NAMESPACE/NAME, or its address) on --port. Policies see the addresses
and ports of a Service's endpoints. Both ends of a connection between pods are judged. Reads the API
server once: all pods, namespaces, NetworkPolicies and ClusterNetworkPolicies.

Exit status: 0 if it is allowed, 1 if it is denied, 2 if that could not be found out. If the agents
do not enforce policies, the answer says so, and the status is 0.`,
		Example: `  fairway policy default/web
  fairway policy default/web --from default/client --port 80
  fairway policy -n default web --to service/shop/db --port 5432
  fairway policy default/web --to 203.0.113.7 --port 443/TCP
  fairway policy default/web --from default/client -o json`,
		Args: cobra.ExactArgs(1),
	}
	var q policyQuestion
	c.Flags().StringVarP(&q.namespace, "namespace", "n", "", "the `namespace` of a pod that is named without one")
	c.Flags().StringVar(&q.from, "from", "", "a `peer` that sends to the pod: NAMESPACE/POD, or an address")
	c.Flags().StringVar(&q.to, "to", "", "a `peer` that the pod sends to: NAMESPACE/POD, service/NAMESPACE/NAME, or an address")
	c.Flags().StringVar(&q.port, "port", "", "the `port` that is sent to, as 80, 53/UDP; without it rules for some ports do not count")
	format := addFormat(c)
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, args []string) error {
		answer, denied, err := judge(ctx, a, args[0], q)
		if err != nil {
			return err
		}
		if err = output.Write(e.Stdout, *format, answer); err == nil && denied {
			err = command.ExitError(1)
		}
		return err
	})
	c.ValidArgsFunction = command.CompleteObjects(e, func(args []string) []command.Completion {
		if len(args) > 0 {
			return nil
		}
		return []command.Completion{{Resource: "pods", Bare: true}}
	})
	for _, name := range ofServices {
		c.Flags().Lookup(name).Hidden = true
	}
	c.RunE = command.ErrorStatus(2, c.RunE)
	return c
}

// ofServices are the agent's flags that concern Services only. fairway policy accepts them, and does not list them.
var ofServices = []string{
	"config", "ipvs-scheduler", "nftables-masquerade-bit", "proxy-mode", "bind-address", "cluster-cidr", "detect-local-mode", "masquerade-all",
	"nodeport-addresses", "pod-bridge-interface", "pod-interface-name-prefix", "empty-after", "refuse-external-ips", "service-limits",
}

// servicesHereOr offers the Services in the kernel of this node, or, on a machine without any, those of the cluster.
func servicesHereOr(e command.Env) cobra.CompletionFunc {
	ofCluster := command.CompleteObjects(e, func([]string) []command.Completion {
		return []command.Completion{{Resource: "services"}}
	})
	return func(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if all, directive := offerServices(c, args, word); len(all) > 0 {
			return all, directive
		}
		return ofCluster(c, args, word)
	}
}

// offerServices offers the Services in the kernel of this node.
func offerServices(c *cobra.Command, _ []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), command.CompletionTimeout)
	defer cancel()
	all, err := modes.All().Found(ctx, modes.Options{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, dp := range all {
		if held, err := dp.Adopt(ctx); err == nil {
			for e := range held.Table.Entries() {
				names = append(names, e.Name.String())
			}
		}
		dp.Close()
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}
