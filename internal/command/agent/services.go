package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/hostport"
	"github.com/fairway-net/fairway/internal/proxy"
	"github.com/fairway-net/fairway/internal/proxy/health"
	"github.com/fairway-net/fairway/internal/service"
)

// services is the service proxy of a run.
type services struct {
	b     *base
	flows *flow.Reconciler
	table *conntrack.Table
	parts []part
}

// newServices builds the service proxy around dp.
func newServices(b *base, dp datapath.Datapath, c kube.Connection) (*services, error) {
	b.tune()
	source := b.store.SubscribeServices("proxy")
	metrics := proxy.NewMetrics(proxy.MetricsConfig{Registry: b.registry, Mode: b.cfg.Mode, Changes: source.Changes})
	s := &services{b: b}
	if err := s.endFlows(dp, c, metrics); err != nil {
		return nil, err
	}
	checks := health.NewNodePortChecks(health.NodePortConfig{Log: b.log, State: b.status.state, Applied: b.status.applied, Problem: b.events.Event})
	loop := proxy.New(proxy.Config{
		Log: b.log, Source: source, HostPorts: s.followHostPorts(), Datapath: dp, Facts: b.facts, FactsChanged: b.peers.Dirty(),
		TablesChanged: b.tables.Changed(command.DatapathTables...),
		Report:        b.events.Report, Event: b.events.Event, Differs: func(text string) { b.status.board.Set(status.RulesDiffer, text) },
		Flows: s.flows, Applied: b.status.applied, Health: b.status.state, Metrics: metrics,
		MinSync: b.cfg.MinSyncPeriod, MaxRetry: b.cfg.SyncPeriod, EmptyAfter: b.cfg.EmptyAfter,
	})
	s.parts = append(s.parts, checks.Run, s.flows.Run, loop.Run, b.releaseStart)
	return s, nil
}

func (s *services) run(ctx context.Context) error { return runAll(ctx, s.parts) }

func (s *services) close() { s.table.Close() }

// followHostPorts adds the reader of hostPorts to the parts, and the server of NodePorts on the loopback addresses of
// --nodeport-addresses. It returns nil if another program provides the pod network.
func (s *services) followHostPorts() (all proxy.HostPorts) {
	n := hostport.NodePorts{Log: s.b.log, Addrs: s.b.cfg.NodePorts.Loopback, Table: s.b.status.applied.Table}
	if s.b.cfg.ConnectsPods() {
		r := newHostPorts(s.b.log, s.b.cfg.NodeName)
		r.TablesChanged = s.b.tables.Changed(numbers.TableHostPorts)
		s.b.events.IdentifyPods(r.UID)
		s.parts = append(s.parts, r.Run)
		n.HostPorts = func() map[service.Key]netip.AddrPort { return r.Now().Loopback() }
		all = r
	}
	if len(n.Addrs) > 0 {
		n.Changed = s.b.status.applied.Subscribe()
		s.parts = append(s.parts, n.Run)
	}
	return all
}

// newHostPorts returns the reader of the CNI plugin's records of hostPorts.
func newHostPorts(log *slog.Logger, node string) *hostport.Reader {
	return hostport.New(log, filepath.Join(cni.DefaultStateDir, node))
}

// endFlows builds the reconciler that ends flows on this node: entries of conntrack, TCP connections by reset, and
// flows that the datapath carries itself.
func (s *services) endFlows(dp datapath.Datapath, c kube.Connection, metrics *proxy.Metrics) error {
	// Package flow paces its questions about pods. A client of their own keeps them from delaying other requests.
	c.QPS = -1
	client, err := kube.Connect(c)
	if err != nil {
		return err
	}
	log := s.b.log
	s.table = conntrack.New(conntrack.Config{Log: log, NodePort: func(addr netip.Addr) bool { return s.b.view().Settings.ServesNodePorts(addr) }})
	enders := []flow.Ender{conntrack.NewEnder(log, s.table, s.b.resets.Reset), flow.EndFunc(dp.EndFlows)}
	s.flows = flow.New(flow.Config{Log: log, Enders: enders, Pods: kube.PodLookup{Client: client}, Observe: metrics.FlowsEnded})
	return nil
}

// tune applies the conntrack settings. A node that refuses them still carries Services.
func (b *base) tune() {
	c := b.cfg.Conntrack
	err := conntrack.Tuning{
		Max: c.Max(runtime.NumCPU()), TCPEstablished: c.TCPEstablished, TCPCloseWait: c.TCPCloseWait,
		UDP: c.UDP, UDPStream: c.UDPStream, TCPBeLiberal: c.TCPBeLiberal,
	}.Apply(b.log)
	if err != nil {
		b.log.Warn("cannot set conntrack settings: the conntrack table may fill, or keep dead connections for long", "err", err)
		b.status.board.Set(status.ConntrackSettings, "cannot set conntrack settings: "+err.Error())
	}
}
