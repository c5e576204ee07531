package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/operate/status"
)

// NewStatus builds `fairway status`.
func NewStatus(e command.Env) *cobra.Command {
	var connection kube.Connection
	var cluster, balancers, gateways bool
	var namespace string
	var scope command.LoadBalancerScope
	format := output.Table
	c := &cobra.Command{
		Use:        "status [NODE…] | --load-balancers [NAMESPACE/SERVICE…] | --gateways [NAMESPACE/GATEWAY…]",
		SuggestFor: []string{"health", "info"},
		Short:      "Show whether the agents work: of this node, or of every node of the cluster",
		Long: `Show whether the agents work.

On a node, and in an agent's pod, it asks the agent that runs there, as root, and needs no API
server. With --cluster, a kubeconfig or names of nodes it asks every agent once, through the API
server, and says whether DNS, controller and speakers run, whether NetworkPolicies are enforced,
and which nodes are drained. It needs the rights to list nodes and workloads, and to get
pods/proxy in the agents' namespace. With names it asks these nodes only.

With --load-balancers it says which nodes announce the addresses of Services of type LoadBalancer,
since when, and on which interfaces or to which BGPPeers, as the speakers' ServiceL2Statuses and
ServiceBGPStatuses say, and over which sessions now, as the speakers say in their ConfigurationStates;
of an address that nobody announces the reason, and of Services by name, or with -o wide, why each
other node does not, as the speakers decide it. It reads the API server once.

With --gateways it shows each Gateway of Fairway: addresses, its and its ListenerSets' listeners, and
why one is not programmed, as the statuses say; the address of Ingresses; and the gateway pods. It
needs the rights to list these objects and their classes, and to get the DaemonSet fairway-gateway
and the Service fairway-ingress.

Exit status: 0 if nothing needs attention, 1 if a node is degraded, not in sync or without an
agent, or another part, an address, a Gateway or the Ingresses do not work, 2 if that is not known.`,
		Example: `  kubectl -n kube-system exec ds/fairway-agent -- fairway status
  fairway status --kubeconfig ~/.kube/config
  kubectl fairway status -o wide
  kubectl fairway status node-2 -o json
  kubectl fairway status --load-balancers shop/web
  kubectl fairway status --gateways`,
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), statusTimeout)
			defer cancel()
			ok, err := false, error(nil)
			if gateways {
				ok, err = gatewayStatus(ctx, e, format, connection, namespace, args)
			} else if balancers {
				ok, err = balancerStatus(ctx, e, format, connection, scope, args)
			} else if cluster || len(args) > 0 || connection.Kubeconfig != "" || connection.Context != "" || e.Plugin() {
				ok, err = clusterStatus(ctx, e, format, connection, namespace, args)
			} else {
				ok, err = nodeStatus(ctx, e, format)
			}
			if err == nil && !ok {
				err = command.ExitError(1)
			}
			return err
		},
		ValidArgsFunction: command.CompleteNodes(&connection, &namespace),
	}
	c.RunE = command.ErrorStatus(2, c.RunE)
	f := c.Flags()
	f.BoolVar(&cluster, "cluster", false, "Ask the agents of all nodes, through the API server")
	f.BoolVar(&balancers, "load-balancers", false, "Say who announces the addresses of Services of type LoadBalancer")
	f.BoolVar(&gateways, "gateways", false, "Show the Gateways: addresses, listeners, and what is not programmed")
	c.MarkFlagsMutuallyExclusive("load-balancers", "gateways")
	c.MarkFlagsMutuallyExclusive("cluster", "gateways")
	command.AddLoadBalancerScope(f, "load-balancer-namespace", &scope)
	command.AddConnection(e, f, &connection)
	f.StringVarP(&namespace, "namespace", "n", "kube-system", "`namespace` of the agents")
	f.VarP(&format, "output", "o", "table, wide, json or yaml")
	return c
}

const (
	statusTimeout = time.Minute
	nodeTimeout   = 5 * time.Second // for the answer of this node's agent
)

// nodeStatus asks the agent in this network namespace.
func nodeStatus(ctx context.Context, e command.Env, format output.Format) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	n, err := status.Ask(ctx)
	if errors.Is(err, status.ErrNoAgent) {
		err = fmt.Errorf("%w [--cluster asks the agents of all nodes; fairway doctor says what is in the way of one here]", err)
	}
	if err != nil {
		return false, err
	}
	return n.OK(), output.Write(e.Stdout, format, n)
}

// balancerStatus prints who announces the addresses of all Services, or of the named ones.
func balancerStatus(ctx context.Context, e command.Env, format output.Format, connection kube.Connection, scope command.LoadBalancerScope, names []string) (ok bool, err error) {
	announced, err := loadbalancer.ConnectAnnounced(connection, scope.Namespace, scope.Class)
	if err != nil {
		return false, err
	}
	b := status.LoadBalancers{Named: len(names) > 0}
	if b.Overview, err = announced.Report(ctx, names...); err != nil {
		return false, err
	}
	b.Time = time.Now()
	if err := b.Only(names); err != nil {
		return false, err
	}
	return b.OK(), output.Write(e.Stdout, format, b)
}

// gatewayStatus prints the state of all Gateways, or of the named ones.
func gatewayStatus(ctx context.Context, e command.Env, format output.Format, connection kube.Connection, namespace string, names []string) (ok bool, err error) {
	client, custom, err := kube.ConnectBoth(connection)
	if err != nil {
		return false, err
	}
	var g status.Gateways
	if g.Overview, err = kubegateway.ReadOverview(ctx, client, custom, namespace); err != nil {
		return false, err
	}
	if err := g.Only(names); err != nil {
		return false, err
	}
	return g.OK(), output.Write(e.Stdout, format, g)
}

// clusterStatus asks the agents of all nodes, or of the named ones.
func clusterStatus(ctx context.Context, e command.Env, format output.Format, connection kube.Connection, namespace string, names []string) (ok bool, err error) {
	agents, err := kube.ConnectAgents(connection, namespace)
	if err != nil {
		return false, err
	}
	pods, err := agents.List(ctx)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(pods, func(p kube.AgentPod) bool { return p.Node == name }) {
			return false, fmt.Errorf("there is no node %q [kubectl get nodes lists them]", name)
		}
	}
	if len(names) > 0 {
		pods = slices.DeleteFunc(pods, func(p kube.AgentPod) bool { return !slices.Contains(names, p.Node) })
	}
	members := make([]status.Member, len(pods))
	for i, p := range pods {
		members[i] = status.Member{Name: p.Node, Pod: p.Name, State: p.State, Running: p.Running, Restarts: p.Restarts}
	}
	var parts *kube.Parts
	var reading sync.WaitGroup
	if len(names) == 0 {
		reading.Go(func() { parts = agents.Parts(ctx) }) // a node that is silent costs its time only once
	}
	var forbidden atomic.Bool
	all := status.Gather(ctx, namespace, members, func(ctx context.Context, i int) ([]byte, error) {
		text, err := agents.Ask(ctx, pods[i], "/statusz")
		if errors.Is(err, kube.ErrNoProxy) {
			forbidden.Store(true)
		}
		return text, err
	})
	reading.Wait()
	if forbidden.Load() {
		return false, kube.ErrNoProxy
	}
	if parts != nil {
		all.Parts = status.JudgeParts(parts, pods, all.Time)
	}
	err = output.Write(e.Stdout, format, all)
	if err == nil && all.OK() && all.Unknown() {
		err = command.ExitError(2)
	}
	return all.OK(), err
}
