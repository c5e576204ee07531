// Package speaker is the command `fairway speaker`: it announces load-balancer addresses from a node. It wires the
// parts. A node that may not announce is mute.
package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/ipc/liveness"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp/peerguard"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// speakerOptions holds the flags of `fairway speaker`.
type speakerOptions struct {
	connection   kube.Connection
	balancers    command.LoadBalancerScope
	node         string
	metrics      string // listen address; empty: no server
	healthz      string // another one; empty: none
	proxyPort    uint16
	readyWithin  time.Duration
	cleanup      bool
	clusterCIDRs []netip.Prefix
}

// loopback is the default address of metrics and checks.
var loopback = fmt.Sprintf("127.0.0.1:%d", numbers.PortSpeakerMetrics)

// New builds `fairway speaker`.
func New(e command.Env) *cobra.Command {
	var o speakerOptions
	var format *command.LogFormat
	var clusterCIDRs func() ([]netip.Prefix, error)
	c := &cobra.Command{
		Use:   "speaker",
		Short: "Announce the addresses of Services of type LoadBalancer on this node's networks",
		Long: `Announce the addresses of Services of type LoadBalancer on this node's networks, by ARP
and neighbour discovery, as L2Advertisements of metallb.io say, and to routers by BGP, as
BGPAdvertisements and BGPPeers say; there also the node's podCIDRs, if its agent's pod
network is bgp. For ARP and neighbour discovery the speakers of all nodes
grant each address to one node at a time, by a majority of their own, also while the API
server is away. The kernel mutes a node whose grant is over. The speaker is a process of
its own: the agent can be replaced while it runs.`,
		Example: `  fairway speaker --kubeconfig ~/.kube/config
  fairway speaker --cleanup    remove what it wrote into the kernel`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.cleanup {
				if err := fence.Remove(c.Context()); err != nil { // the speaker may run
					return err
				}
				return errors.Join(bgp.Cleanup(c.Context()), peerguard.Remove(c.Context()))
			}
			if err := command.OrHostname(&o.node, "--hostname-override"); err != nil {
				return err
			}
			var err error
			if o.clusterCIDRs, err = clusterCIDRs(); err != nil {
				return err
			}
			if o.metrics, err = settings.ResolveWithPort(o.metrics, numbers.PortSpeakerMetrics); err != nil {
				return fmt.Errorf("--metrics-bind-address: %w", err)
			}
			log, err := format.Logger(e.Stderr, "speaker")
			if err != nil {
				return err
			}
			return runSpeaker(c.Context(), log, o, e.Version)
		},
	}
	format = command.NewLogFormat(c)
	command.AddSettings(c, settings.Speaker)
	f := c.Flags()
	command.AddPodConnection(e, "speaker", f, &o.connection)
	f.StringVar(&o.node, "hostname-override", "", "The `name` of this node (default the host's name)")
	clusterCIDRs = command.AddClusterCIDR(f)
	command.AddLoadBalancerScope(f, "namespace", &o.balancers)
	f.StringVar(&o.metrics, "metrics-bind-address", loopback, settings.Usage(settings.Speaker, "metrics-bind-address"))
	f.StringVar(&o.healthz, "healthz-bind-address", "", "Serve /metrics, /healthz and /readyz also at this `address`, if it differs")
	f.Uint16Var(&o.proxyPort, "proxy-health-port", numbers.PortHealthz, "The `port` of this node's proxy that says at /healthz when it has programmed the kernel, which BGP waits for; 0: it does not")
	f.DurationVar(&o.readyWithin, "ready-within", readyWithin, settings.Usage(settings.Speaker, "ready-within"))
	f.BoolVar(&o.cleanup, "cleanup", false, "Remove the speaker's rules from this node, and end")
	return c
}

// speakerEmptyAfter is how long the API server must report that most objects are gone.
const speakerEmptyAfter = time.Minute

func runSpeaker(ctx context.Context, log *slog.Logger, o speakerOptions, version string) error {
	lock, err := fence.Lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	client, custom, err := kube.ConnectBoth(o.connection)
	if err != nil {
		return err
	}
	key, err := loadbalancer.SpeakerKey(ctx, client, o.balancers.Namespace)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version, "node", o.node)
	events := kube.NewRecorder(log, client, o.node)
	store := kube.New(kube.Config{
		Log: log, Client: client, NodeName: o.node, EmptyAfter: speakerEmptyAfter, Problem: events.Event,
		Custom: custom, LoadBalancerNamespace: o.balancers.Namespace, ClusterCIDRs: o.clusterCIDRs,
	})
	registry := command.NewRegistry(store)
	dead := liveness.NewPublisher(log)
	source := loadbalancer.SubscribeSpeaker(store, o.balancers.Class)
	statuses, told, gone := source.L2Statuses(log, events.Inform), source.BGPStatuses(log, events.Inform), source.GoneStatuses(log)
	metrics := layer2.NewMetrics(registry, o.node)
	owners := newEgressOwners(log, podroutes.Of(podroutes.DefaultDir, o.node))
	routes := source.SubscribeBGP()
	registry.MustRegister(routes.Metrics())
	standings := routes.Standings(events)
	s := layer2.New(layer2.Config{
		Log: log, Node: o.node, Key: key, Port: numbers.PortHeartbeat, Source: source, Lease: source,
		Assigned: func(all map[api.Name]layer2.Assignment) { statuses.Set(interfacesOf(all)) },
		Dead:     func(nodes []string) { dead.Set(nodes); gone.Set(nodes) },
		Owners:   owners.set, Granted: standings.SetGranted, Refused: standings.SetRefused,
		Event: events.Event, Metrics: metrics,
	})
	health := layer2.NewHealth()
	guard := peerguard.New(log)
	routers, err := bgp.New(bgp.Config{
		Log: log, Node: o.node, Source: routes, Health: health, ProxyPort: o.proxyPort, ReflectorPort: numbers.PortReflector, Report: routes.Report, Metrics: bgp.NewMetrics(registry),
		Announced: func(all map[api.Name]bgp.Announcement) {
			peers, addrs := announcedBy(all)
			told.Set(peers)
			metrics.SetBGP(addrs)
		},
		ForwardingReady: s.ForwardingReady(), Sessions: standings.SetSessions, Routers: guard.Set, RIB: podroutes.Of(podroutes.DefaultDir, o.node),
	})
	if err != nil {
		return err
	}
	ready := newGate(log, o.readyWithin, s.Ready, routers.Ready)
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		health.Run, routes.Run, standings.Run, routers.Run, guard.Run, events.Run, store.Run, s.Run, dead.Run, owners.run,
		statuses.Run, told.Run, gone.Run,
	} {
		g.Go(func() error { return run(ctx) })
	}
	for flag, addr := range o.listen() {
		g.Go(func() error {
			return command.Serve(ctx, addr, flag, registry, command.Checks{"/healthz": s.Healthy, "/readyz": ready.check})
		})
	}
	return g.Wait()
}

// listen returns the addresses of metrics and checks by their flags. A listener on all addresses serves both.
func (o speakerOptions) listen() map[string]string {
	all := map[string]string{}
	if o.metrics != "" {
		all["--metrics-bind-address"] = o.metrics
	}
	if o.healthz != "" && o.healthz != o.metrics && !onAll(o.metrics, o.healthz) {
		all["--healthz-bind-address"] = o.healthz
	}
	return all
}

// onAll reports whether the listener at addr also takes connections to other.
func onAll(addr, other string) bool {
	if strings.HasPrefix(addr, ":") {
		addr = "[::]" + addr
	}
	a, err := netip.ParseAddrPort(addr)
	b, err2 := netip.ParseAddrPort(other)
	return err == nil && err2 == nil && a.Addr().IsUnspecified() && a.Port() == b.Port()
}

// interfacesOf returns the announced addresses of each Service with their interfaces.
func interfacesOf(all map[api.Name]layer2.Assignment) map[api.Name]loadbalancer.AnnouncedService {
	out := make(map[api.Name]loadbalancer.AnnouncedService, len(all))
	for name, x := range all {
		out[name] = loadbalancer.AnnouncedService{By: x.Interfaces, Addrs: x.Addrs}
	}
	return out
}

// announcedBy returns the announced addresses of each Service with their BGPPeers, and the set of all addresses.
func announcedBy(all map[api.Name]bgp.Announcement) (services map[api.Name]loadbalancer.AnnouncedService, addrs map[api.Name][]netip.Addr) {
	services, addrs = make(map[api.Name]loadbalancer.AnnouncedService, len(all)), make(map[api.Name][]netip.Addr, len(all))
	for name, x := range all {
		services[name] = loadbalancer.AnnouncedService{By: x.Peers, Addrs: x.Addrs}
		addrs[name] = x.Addrs
	}
	return services, addrs
}
