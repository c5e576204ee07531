// Package controller is the command `fairway controller`: decisions that the cluster makes once, not on each node. It
// wires the parts. One of several controllers is active at a time.
package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kube"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// controllerOptions are the flags of `fairway controller`.
type controllerOptions struct {
	connection          kube.Connection
	identity, namespace string
	metrics             string // listen address; empty: no server
	balancer            string
	scope               command.LoadBalancerScope
	policies            bool
	gateways            bool
	clusterCIDRs        []netip.Prefix
	serviceLBRanges     []netip.Prefix
}

// The sources of load-balancer addresses.
const (
	balancerNone      = "none"
	balancerPools     = "pools"
	balancerServiceLB = "servicelb"
	balancerEdge      = "edge"
)

var balancers = []string{balancerNone, balancerPools, balancerServiceLB, balancerEdge}

// New builds `fairway controller`.
func New(e command.Env) *cobra.Command {
	var o controllerOptions
	var format *command.LogFormat
	var clusterCIDRs, serviceLBRanges func() ([]netip.Prefix, error)
	c := &cobra.Command{
		Use:   "controller",
		Short: "Decide what is decided once for all nodes: pods' weights, load-balancer addresses, policies' conditions",
		Long: `Decide what is decided once for all nodes. It writes the weights of pods into the
EndpointSlices of the Services that ask for them (fairway.net/weights). With --load-balancer pools
it gives Services of type LoadBalancer addresses of IPAddressPools (docs/loadbalancer.md), with
servicelb those of the nodes, with edge those of pools that fairway edge has on a machine outside
of the cluster. With --network-policy it writes the conditions of ClusterNetworkPolicies
(docs/networkpolicy.md). With --gateway it makes the Services of Gateways and writes the statuses of
Gateway API and Ingress (docs/gateway.md). Of several controllers one works at a time: that which
holds the Lease fairway-controller.`,
		Example: `  fairway controller --kubeconfig ~/.kube/config --load-balancer pools
  fairway controller --kubeconfig ~/.kube/config --network-policy`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains(balancers, o.balancer) {
				return fmt.Errorf("--load-balancer %q is unknown [choose one of %s]", o.balancer, strings.Join(balancers, ", "))
			}
			if err := command.OrHostname(&o.identity, "--identity"); err != nil {
				return err
			}
			var err error
			if o.clusterCIDRs, err = clusterCIDRs(); err != nil {
				return err
			}
			if o.serviceLBRanges, err = serviceLBRanges(); err != nil {
				return err
			}
			log, err := format.Logger(e.Stderr, "controller")
			if err != nil {
				return err
			}
			return o.run(c.Context(), log, e.Version)
		},
	}
	format = command.NewLogFormat(c)
	command.AddSettings(c, settings.Controller)
	f := c.Flags()
	command.AddPodConnection(e, "controller", f, &o.connection)
	f.StringVar(&o.namespace, "lease-namespace", "kube-system", "The `namespace` of the Lease fairway-controller")
	f.StringVar(&o.identity, "identity", "", "The `name` of this process, as no other controller has it (default the host's name)")
	f.StringVar(&o.balancer, "load-balancer", balancerNone, "Where Services of type LoadBalancer get addresses from: `"+strings.Join(balancers, "|")+"`")
	serviceLBRanges = command.AddPrefixes(f, "servicelb-ranges", "SERVICELB_RANGES", "`CIDRs` whose addresses Services get if they are ExternalIPs of nodes (--load-balancer servicelb)")
	clusterCIDRs = command.AddClusterCIDR(f)
	command.AddLoadBalancerScope(f, "load-balancer-namespace", &o.scope)
	f.BoolVar(&o.policies, "network-policy", false, "Write the conditions of ClusterNetworkPolicies, which the agents enforce (default $NETWORK_POLICY)")
	f.BoolVar(&o.gateways, "gateway", false, settings.Usage(settings.Controller, "gateway"))
	f.StringVar(&o.metrics, "metrics-bind-address", ":"+strconv.Itoa(numbers.PortControllerMetrics), "The `address` of /metrics, /livez and /readyz; empty: none")
	o.connection.QPS, o.connection.Burst = 50, 100 // one process for the cluster
	return c
}

// controllerEmptyAfter is how long the API server must report that most objects are gone.
const controllerEmptyAfter = time.Minute

func (o controllerOptions) run(ctx context.Context, log *slog.Logger, version string) error {
	client, custom, err := kube.ConnectBoth(o.connection)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version, "identity", o.identity, "loadBalancer", o.balancer)
	registry := command.NewRegistry()
	standing := &kube.Standing{}
	election := kube.Election{Standing: standing, Log: log, Client: client, Namespace: cmp.Or(o.namespace, "kube-system"), Name: "fairway-controller", Identity: o.identity}
	g, ctx := errgroup.WithContext(ctx)
	if o.metrics != "" {
		g.Go(func() error {
			return command.Serve(ctx, o.metrics, "--metrics-bind-address", registry, command.Checks{"/livez": standing.Live, "/readyz": standing.Ready})
		})
	}
	g.Go(func() error {
		return kube.Elect(ctx, election, func(ctx context.Context) error {
			events := kube.NewRecorder(log, client, o.identity)
			store := kube.New(kube.Config{Log: log, Client: client, EmptyAfter: controllerEmptyAfter, Problem: events.Event,
				AllNodes: true, ClusterCIDRs: o.clusterCIDRs, Custom: custom, LoadBalancerNamespace: o.scope.Namespace})
			weigher := kube.NewWeigher(log, store, events.Report, events.PodEvent)
			g, ctx := errgroup.WithContext(ctx)
			switch o.balancer {
			case balancerPools, balancerEdge:
				mode := loadbalancer.IPModeVIP
				if o.balancer == balancerEdge {
					mode = loadbalancer.IPModeProxy
				}
				addresses := loadbalancer.NewAddresses(log, store, events, o.scope.Class, mode, hostPorts())
				registry.MustRegister(addresses)
				defer registry.Unregister(addresses)
				g.Go(func() error { return addresses.Run(ctx) })
			case balancerServiceLB:
				hosts := loadbalancer.NewServiceLB(log, store, events, o.scope.Class, hostPorts(), o.serviceLBRanges)
				g.Go(func() error { return hosts.Run(ctx) })
			}
			if o.policies {
				conditions := kubepolicy.NewStatuses(log, store)
				g.Go(func() error { return conditions.Run(ctx) })
			}
			if o.gateways {
				gateways := kubegateway.NewController(log, store, events, kubegateway.ControllerConfig{
					Namespace: cmp.Or(o.namespace, "kube-system"), Class: o.scope.Class, NodePorts: o.balancer == balancerNone || o.balancer == balancerEdge})
				g.Go(func() error { return gateways.Run(ctx) })
			}
			g.Go(func() error { return events.Run(ctx) })
			g.Go(func() error { return store.Run(ctx) })
			g.Go(func() error { return weigher.Run(ctx) })
			return g.Wait()
		})
	})
	return g.Wait()
}

// hostPorts returns the ports of node programs, which no Service may get on a node's address.
func hostPorts() (all []ipam.PortRange) {
	for _, r := range numbers.HostPorts {
		all = append(all, ipam.PortRange{First: r[0], Last: r[1]})
	}
	return all
}
