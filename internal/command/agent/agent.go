// Package agent is the command `fairway agent`: the service proxy, pod network and policies of one node.
//
//	flags, --config, --settings-dir ─▶ config ─▶ agent.run ─┬─ kube.Store
//	                                                        ├─ proxy.Loop ─▶ datapath
//	                                                        ├─ node.Network, enforcer.Enforcer
//	                                                        └─ health.Server, status
//
// This package wires the parts and decides nothing. An agent that ends leaves its rules in place. As gives other
// commands the agent's own configuration, so that they decide as the agent does.
package agent

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/reset"
	"github.com/fairway-net/fairway/internal/ipc/liveness"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/kernel/process"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/hostport"
	"github.com/fairway-net/fairway/internal/podnetwork/node"
	"github.com/fairway-net/fairway/internal/podnetwork/node/obstacles"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/proxy"
	"github.com/fairway-net/fairway/internal/proxy/health"
	"github.com/fairway-net/fairway/internal/service"
)

// New builds `fairway agent`.
func New(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:        "agent",
		SuggestFor: []string{"proxy", "kube-proxy"},
		Short:      "Run the service proxy of this node (replaces kube-proxy)",
		Long: `Run the service proxy of this node (replaces kube-proxy).

The flags are kube-proxy's where they mean the same. On SIGTERM the agent ends and
leaves its rules in place, so that a restart interrupts no connection; --cleanup removes
the rules of all modes. Started in another mode than the agent before, it takes
the node over as soon as its own rules are in place, and connections go on.

Exit status: 0 after SIGTERM, 1 if it cannot start or go on.`,
		Example: `  fairway agent --kubeconfig ~/.kube/config --cluster-cidr 10.244.0.0/16
  fairway agent --master https://192.168.49.254:6443 --proxy-mode auto --replace-kube-proxy
  fairway agent --config /var/lib/kube-proxy/config.conf
  fairway agent --cleanup --pod-network routes    remove everything from this node`,
		Args: cobra.NoArgs,
	}
	flags := config.NewFlags(c.Flags())
	command.Complete(c, "proxy-mode", config.Modes()...)
	command.Complete(c, "pod-network", config.PodNetworks()...)
	command.Complete(c, "detect-local-mode", config.DetectClusterCIDR, config.DetectNodeCIDR, config.DetectBridge, config.DetectPrefix)
	command.Complete(c, "log-format", "text", "json")
	command.Complete(c, "log-level", "debug", "info", "warn", "error")
	c.RunE = func(c *cobra.Command, _ []string) error {
		settings, err := newFollower(e, flags)
		if err != nil {
			return err
		}
		cfg, err := flags.Load()
		if err != nil {
			return err
		}
		log := newLog(e.Stderr, cfg)
		settings.log = log
		for _, w := range cfg.Warnings {
			log.Warn(w)
		}
		a := &agent{cfg: cfg, log: log, env: e, published: &published{version: e.Version}, settings: settings}
		lock, err := command.LockNode()
		if err != nil {
			return err
		}
		defer lock.Close()
		if cfg.Cleanup {
			return a.cleanup(c.Context())
		}
		g, ctx := errgroup.WithContext(c.Context())
		g.Go(func() error { return status.Serve(ctx, lock, a.published.node) })
		g.Go(func() error { return a.runs(ctx) })
		return g.Wait()
	}
	return c
}

// agent joins everything that runs on a node.
type agent struct {
	cfg       *config.Config
	log       *slog.Logger
	env       command.Env
	published *published // the answers to fairway status; nil in commands that run no agent
	settings  *follower  // nil in commands that run no agent
	began     func()     // called when a run has started all its parts
	// gate asks NetworkPolicies about connections that this process carries. It is nil without --network-policy.
	gate *flow.Gate
}

func (a *agent) run(ctx context.Context) error {
	a.limitMemory()
	says := newAgentStatus(a.cfg, a.env.Version)
	dp, release, err := a.openDatapath(ctx, says)
	if err != nil {
		return err
	}
	var unsupported service.Algorithms
	if dp != nil {
		defer dp.Close()
		unsupported = ^dp.Info().Capabilities.Algorithms
	}
	store, events, err := a.openStore(a.cfg.ConnectsPods())
	if err != nil {
		return err
	}
	nodes := nodes{store.SubscribeNodes("pod network"), store}
	peers := liveness.NewFollower()
	registry := command.NewRegistry(store, NewDeadNodes(peers))
	view := a.cfg.View(store, unsupported)
	says.store = store
	a.published.set(says)
	checks := health.NewNodePortChecks(health.NodePortConfig{Log: a.log, State: says.state, Applied: says.applied, Problem: events.Event})
	server := a.healthServer(says, registry)
	if err := server.Listen(ctx); err != nil {
		return err
	}
	a.began()
	a.log.Info("starting", "version", a.env.Version, "node", a.cfg.NodeName, "mode", a.cfg.Mode, "podNetwork", a.cfg.PodNetwork)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Run(ctx) })
	g.Go(func() error { return store.Run(ctx) })
	g.Go(func() error { return checks.Run(ctx) })
	g.Go(func() error { return peers.Run(ctx) })
	g.Go(func() error { return events.Run(ctx) })
	g.Go(func() error { return a.settings.run(ctx, a.cfg, &says.board, events.NodeEvent) })
	a.look(ctx, g, view, says, events, registry)
	var resets *reset.Resetter
	if dp != nil {
		a.tune(says)
		services := store.SubscribeServices("proxy")
		metrics := proxy.NewMetrics(proxy.MetricsConfig{Registry: registry, Mode: a.cfg.Mode, Changes: services.Changes})
		var flows *flow.Reconciler
		var table *conntrack.Table
		if flows, table, resets, err = a.flows(dp, view, store, metrics); err != nil {
			return err
		}
		defer table.Close()
		loop := proxy.New(proxy.Config{
			Log: a.log, Source: services, HostPorts: a.followHostPorts(ctx, g, says, events), Datapath: dp, Facts: facts(view, peers), FactsChanged: peers.Dirty(),
			Report: events.Report, Event: events.Event, Differs: func(text string) { says.board.Set(status.RulesDiffer, text) }, Flows: flows, Applied: says.applied, Health: says.state, Metrics: metrics,
			MinSync: a.cfg.MinSyncPeriod, MaxRetry: a.cfg.SyncPeriod, EmptyAfter: a.cfg.EmptyAfter,
		})
		g.Go(func() error { a.releaseStart(ctx, says.applied); return nil })
		g.Go(func() error { return flows.Run(ctx) })
		g.Go(func() error { return loop.Run(ctx) })
		g.Go(func() error { return a.watchRelease(ctx, registry, events, release) })
	}
	if a.cfg.ConnectsPods() {
		pods := a.podNetwork()
		pods.Event, pods.Registry, pods.PolicySocket = events.NodeEvent, registry, a.policySocket()
		pods.Egress = a.followEgress(ctx, g, store, events, says)
		pods.APIServers = func() []netip.Addr { return view().APIServers }
		g.Go(func() error { return nodes.run(ctx, pods, a.cfg) })
	}
	g.Go(func() error { return a.enforce(ctx, store, resets, events, registry) })
	err = g.Wait()
	a.log.Info("shutting down; the rules stay in place")
	return err
}

// look starts the watchers for obstacles outside of Fairway: foreign firewalls, and a full conntrack table.
func (a *agent) look(ctx context.Context, g *errgroup.Group, view func() service.Node, says *agentStatus, events *kube.Recorder, registry *prometheus.Registry) {
	event := func(reason, message string) { events.NodeEvent(a.cfg.NodeName, reason, message) }
	watcher := obstacles.Watcher{
		Pods: func() []netip.Prefix { return view().Settings.Pods },
		Log:  a.log, Registry: registry, Event: event,
		Now: func(message string) { says.board.Set(status.ForwardingDropped, message) },
	}
	room := conntrack.Room{
		Log: a.log, Registry: registry, Event: event,
		Now: func(message string) { says.board.Set(status.ConntrackFull, message) },
	}
	g.Go(func() error { return watcher.Run(ctx) })
	g.Go(func() error { return room.Run(ctx) })
}

// healthServer builds the server of the health and metrics ports.
func (a *agent) healthServer(says *agentStatus, registry *prometheus.Registry) *health.Server {
	return health.New(health.Config{
		Log: a.log, Healthz: a.cfg.Healthz, Metrics: a.cfg.Metrics, State: says.state,
		Eligible: says.eligible, NotEligible: says.notEligible, Status: says.public,
		PortInUse: func(err error) { says.board.Set(status.PortInUse, text(err)) },
		Families:  []string{"IPv4", "IPv6"},
		ProxyMode: a.cfg.Mode, Version: a.env.Version, Registry: registry, Wait: a.cfg.ReplaceKubeProxy,
	})
}

// hostPorts reads the CNI plugin's records of hostPorts.
func (a *agent) hostPorts() *hostport.Reader {
	return hostport.New(a.log, filepath.Join(cni.DefaultStateDir, a.cfg.NodeName))
}

// followHostPorts reads hostPorts until ctx ends, and serves NodePorts on the loopback addresses of
// --nodeport-addresses. It returns nil if another program provides the pod network.
func (a *agent) followHostPorts(ctx context.Context, g *errgroup.Group, says *agentStatus, events *kube.Recorder) (all proxy.HostPorts) {
	n := hostport.NodePorts{Log: a.log, Addrs: a.cfg.NodePorts.Loopback, Table: says.applied.Table}
	if a.cfg.ConnectsPods() {
		r := a.hostPorts()
		events.IdentifyPods(r.UID)
		g.Go(func() error { return r.Run(ctx) })
		n.HostPorts = func() map[service.Key]netip.AddrPort { return r.Now().Loopback() }
		all = r
	}
	if len(n.Addrs) > 0 {
		n.Changed = says.applied.Subscribe()
		g.Go(func() error { return n.Run(ctx) })
	}
	return all
}

// connection returns the way to the API server.
func (a *agent) connection() kube.Connection { return a.cfg.Connection(a.env.UserAgent("")) }

// openStore returns the reader of the API server and the writer of events.
func (a *agent) openStore(allNodes bool) (*kube.Store, *kube.Recorder, error) {
	client, custom, err := kube.ConnectBoth(a.connection())
	if err != nil {
		return nil, nil, err
	}
	events := kube.NewRecorder(a.log, client, a.cfg.NodeName)
	return kube.New(kube.Config{
		Log: a.log, Client: client, Custom: custom, NodeName: a.cfg.NodeName, AllNodes: allNodes,
		EmptyAfter: a.cfg.EmptyAfter, Problem: events.Event,
	}), events, nil
}

// flows builds the reconciler that ends flows on this node: entries of conntrack, TCP connections by reset, and flows
// that the datapath carries itself.
func (a *agent) flows(dp datapath.Datapath, view func() service.Node, store *kube.Store, metrics *proxy.Metrics) (*flow.Reconciler, *conntrack.Table, *reset.Resetter, error) {
	// Package flow paces its questions about pods. A client of their own keeps them from delaying other requests.
	c := a.connection()
	c.QPS = -1
	client, err := kube.Connect(c)
	if err != nil {
		return nil, nil, nil, err
	}
	resets := reset.New(reset.Config{Log: a.log, Flows: conntrack.New(conntrack.Config{Log: a.log})})
	table := conntrack.New(conntrack.Config{Log: a.log, NodePort: func(addr netip.Addr) bool { return view().Settings.ServesNodePorts(addr) }})
	enders := []flow.Ender{conntrack.NewEnder(a.log, table, resets.Reset), flow.EndFunc(dp.EndFlows)}
	flows := flow.New(flow.Config{Log: a.log, Enders: enders, Pods: kube.PodLookup{Client: client}, Observe: metrics.FlowsEnded})
	return flows, table, resets, nil
}

// modeOptions returns the configuration for modes.
func (a *agent) modeOptions() modes.Options {
	c := a.cfg
	return modes.Options{Mark: c.Mask(), CountTraffic: c.CountTraffic, TCPTimeout: c.IPVS.TCP, FinTimeout: c.IPVS.TCPFin, UDPTimeout: c.IPVS.UDP, Log: a.log, Gate: a.gate}
}

// openDatapath opens the datapath of --proxy-mode and probes it before anything else starts. The datapath takes over
// from the previous one. In mode none it returns nil if the node has no rules of Fairway, else the release that keeps
// them until another proxy has taken over.
func (a *agent) openDatapath(ctx context.Context, says *agentStatus) (dp datapath.Datapath, release *takeover.Release, err error) {
	if a.gate = nil; a.cfg.NetworkPolicy {
		a.gate = &flow.Gate{}
	}
	if a.cfg.Mode == datapath.None {
		if release = a.openRelease(ctx, says); release == nil {
			return nil, nil, nil
		}
		return release, release, nil
	}
	dp, err = modes.All().Choose(ctx, a.log, a.cfg.Mode, a.modeOptions())
	if err != nil {
		return nil, nil, err
	}
	a.cfg.Mode = dp.Info().Name // "auto" is resolved here
	return takeover.New(takeover.Config{
		Log: a.log, Datapath: dp, Others: modes.All().Others(ctx, a.log, a.cfg.Mode, a.modeOptions()),
		KubeProxy: &takeover.KubeProxy{}, Replace: a.cfg.ReplaceKubeProxy, Found: says.found,
	}), nil, nil
}

// nodes gives the pod network the cluster's nodes.
type nodes struct {
	*kube.Subscription
	store *kube.Store
}

// Peers implements node.Nodes.
func (n nodes) Peers() []plan.Peer { return command.Peers(n.store.Nodes()) }

// run runs the pod network until ctx ends.
func (n nodes) run(ctx context.Context, pods node.Config, cfg *config.Config) error {
	pods.ServiceCIDRs = n.store.ServiceCIDRs
	pods.PublishKey = func(ctx context.Context, k plan.Key) error { return n.store.PublishWireGuardKey(ctx, k.String()) }
	return node.New(pods).Run(ctx, cfg.NodeName, n, cfg.SyncPeriod)
}

func (a *agent) podNetwork() node.Config {
	return node.Config{
		Log: a.log, CNIBinDir: a.cfg.CNIBinDir, CNIConfDir: a.cfg.CNIConfDir,
		Masquerade: true, NonMasqueradeCIDRs: a.cfg.NonMasqueradeCIDRs, ClusterCIDRs: a.cfg.ClusterCIDRs, NodeName: a.cfg.NodeName, Way: plan.Way(a.cfg.PodNetwork), RecordHostPorts: a.cfg.Mode != datapath.None,
		RIB: podroutes.Of(podroutes.DefaultDir, a.cfg.NodeName),
	}
}

// tune applies the conntrack settings. A node that refuses them still carries Services.
func (a *agent) tune(says *agentStatus) {
	c := a.cfg.Conntrack
	err := conntrack.Tuning{
		Max: c.Max(runtime.NumCPU()), TCPEstablished: c.TCPEstablished, TCPCloseWait: c.TCPCloseWait,
		UDP: c.UDP, UDPStream: c.UDPStream, TCPBeLiberal: c.TCPBeLiberal,
	}.Apply(a.log)
	if err != nil {
		a.log.Warn("cannot set conntrack settings: the conntrack table may fill, or keep dead connections for long", "err", err)
		says.board.Set(status.ConntrackSettings, "cannot set conntrack settings: "+err.Error())
	}
}

// limitMemory sets the garbage collector's target and the OOM score.
func (a *agent) limitMemory() {
	if os.Getenv("GOGC") == "" {
		// Most of the heap is the cluster's objects, which stay. Half the usual slack costs little CPU and saves a
		// third of the memory.
		debug.SetGCPercent(50)
	}
	a.releaseProgram()
	a.setOOMScore()
}

// releaseStart returns memory to the kernel once the first table is applied: the first lists and the first dump of the
// kernel's rules are garbage then.
func (a *agent) releaseStart(ctx context.Context, applied *proxy.Applied) {
	select {
	case <-ctx.Done():
	case <-applied.Subscribe():
		debug.FreeOSMemory()
		a.releaseProgram()
	}
}

func (a *agent) releaseProgram() {
	if err := process.ReleaseProgram(); err != nil {
		a.log.Debug("more memory than needed stays in use", "err", err)
	}
}

// setOOMScore sets oom_score_adj. The kernel refuses it without CAP_SYS_RESOURCE, and the agent then runs without it.
func (a *agent) setOOMScore() {
	if a.cfg.OOMScoreAdj == nil {
		return
	}
	err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*a.cfg.OOMScoreAdj)), 0)
	if err != nil {
		a.log.Warn("--oom-score-adj has no effect", "err", err)
	}
}

// newLog returns the logger of the configured format.
func newLog(w io.Writer, cfg *config.Config) *slog.Logger {
	if !cfg.LogJSON {
		return command.NewLog(w, cfg.LogLevel)
	}
	return command.NewJSONLog(w, cfg.LogLevel, "agent")
}
