package ipvs

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

//go:embed ruleset.nft.tmpl
var rulesetText string

// DefaultMark is kube-proxy's mark: bit 14.
const DefaultMark = numbers.MarkMasquerade

// DefaultDrain is kube-proxy's limit.
const DefaultDrain = 15 * time.Minute

// Config configures the datapath. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade me". 0: DefaultMark.
	Mark uint32
	// Drain limits how long a removed endpoint stays, without new connections, while IPVS counts old connections to it.
	// 0: DefaultDrain.
	Drain time.Duration
	// TCPTimeout, FinTimeout and UDPTimeout are how long IPVS keeps open connections, half-closed connections and UDP
	// flows, for its counts and for affinity. They apply to all virtual servers of the node. 0 leaves the kernel's
	// value.
	TCPTimeout, FinTimeout, UDPTimeout time.Duration
	// Log gets a message for each scheduler that the kernel lacks. Nil: no messages.
	Log *slog.Logger
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	datapath.Tracked
	cfg   Config
	drain time.Duration
	rules *nftset.Syncer[*state]
	genl  *genlConn

	applied *service.Table // the table of the last Sync; nil: read the kernel
	state   *state         // applied as kernel objects
	// schedulers has the schedulers that were tried, and whether the kernel has them.
	schedulers map[string]bool
	text       string // the ruleset, as people read it
}

var _ datapath.Datapath = (*Datapath)(nil)

// New returns a datapath. It does not touch the kernel.
func New(cfg Config) (*Datapath, error) {
	if cfg.Mark == 0 {
		cfg.Mark = DefaultMark
	}
	if cfg.Drain == 0 {
		cfg.Drain = DefaultDrain
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Datapath{cfg: cfg, drain: cfg.Drain, genl: &genlConn{}, schedulers: map[string]bool{}}
	d.rules = nftset.NewSyncer(datapath.IPVS, nft.New(tableName), d.read)
	var err error
	if d.text, err = d.program().Text(tableName); err != nil {
		return nil, err
	}
	return d, nil
}

// Info implements datapath.Datapath. Packets and bytes are not counted, because IPVS sees only the first packet of a
// connection and its replies.
func (d *Datapath) Info() datapath.Info {
	return datapath.Info{Name: datapath.IPVS, Program: d.text, Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random, service.RoundRobin, service.LeastConn, service.SourceHash,
			service.DestHash, service.ShortestDelay, service.NeverQueue, service.Maglev),
		Protocols: []api.Proto{api.TCP, api.UDP, api.SCTP},
		Counts:    datapath.CountsConnections,
	}}
}

// FailWrites makes every write call f first, and fail with its error. Tests inject faults with it.
func (d *Datapath) FailWrites(f func() error) {
	d.rules.Table.FailWrites(f)
	d.genl.fail = f
}

func (d *Datapath) program() *nft.Ruleset {
	return &nft.Ruleset{Source: rulesetText, Data: map[string]any{
		"Mark": fmt.Sprintf("%#x", d.cfg.Mark), "Own4": serverRange4, "Own6": serverRange6, "DropInvalid": !nftset.Liberal(),
		"Affinity": durationClasses(), "OverflowPort": overflowPortNumber,
	}}
}

// Probe implements datapath.Datapath.
func (d *Datapath) Probe(ctx context.Context) error {
	w := &genlConn{}
	defer w.close()
	return errors.Join(d.rules.Table.Probe(ctx), w.open(ctx))
}

// errChanged says that another program has changed our rules. The next Sync loads them again.
var errChanged = errors.New("another program has changed table " + tableName)

// Sync implements datapath.Datapath.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats, err := d.sync(ctx, want)
	if err != nil {
		d.forget() // the next Sync reads the kernel
		return stats, fmt.Errorf("sync ipvs: %w", err)
	}
	return stats, nil
}

func (d *Datapath) sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats := datapath.Stats{Full: d.applied == nil}
	if err := d.rules.Start(ctx, stats.Full, d.readKernel); err != nil {
		return stats, err
	}
	changes := d.changes(want, stats.Full)
	if err := d.tryScheduler(ctx, changes); err != nil {
		return stats, err
	}
	r, err := d.render(want, changes, stats.Full)
	if err != nil {
		return stats, err
	}
	if !stats.Full && len(r.writes) == 0 && len(r.before)+len(r.after) > 0 {
		// A write fails if another program has removed the table, but there are no writes.
		if change, _, err := d.rules.Watch.Look(ctx); err != nil || change == nft.Rules {
			d.rules.Reload()
			return stats, errors.Join(err, errChanged)
		}
	}
	if err := d.apply(ctx, r); err != nil {
		return stats, err
	}
	if err := d.rules.End(ctx, d.program(), nftset.Chains{}); err != nil {
		return stats, err
	}
	d.applied = want
	stats.Frontends = len(r.changedFrontends)
	for _, w := range r.writes {
		stats.Added += count(w.Add)
		stats.Deleted += count(w.Del)
	}
	for _, o := range slices.Concat(r.before, r.after) {
		del := o.cmd == cmdDelReal || o.cmd == cmdDelServer
		stats.Added += count(!del)
		stats.Deleted += count(del)
	}
	return stats, nil
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// readKernel prepares the node and the table, and reads the kernel's state.
func (d *Datapath) readKernel(ctx context.Context) (err error) {
	if err := d.genl.open(ctx); err != nil {
		return err
	}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	if d.state, _, err = d.rules.Begin(ctx, d.program()); err == nil {
		d.state.schedulers = d.schedulers
		for _, v := range d.state.servers {
			d.schedulers[v.sched] = true // the kernel has it
		}
	}
	return err
}

// apply writes r and records it on success.
func (d *Datapath) apply(ctx context.Context, r *changes) error {
	if err := d.genl.do(ctx, r.before); err != nil {
		return err
	}
	if err := d.rules.Commit(ctx, nil, r.writes); err != nil {
		return err
	}
	if err := d.rules.Switch(ctx, d.program()); err != nil {
		return err
	}
	if err := d.genl.do(ctx, r.after); err != nil {
		return err
	}
	d.noteChanges(r)
	return nil
}

// noteChanges records the changes of r in the state.
func (d *Datapath) noteChanges(r *changes) {
	for k, is := range r.frontends {
		if is.equal(&frontendState{}) {
			delete(d.state.frontends, k)
			continue
		}
		d.state.frontends[k] = is
	}
	for i, is := range r.servers {
		if is == nil {
			delete(d.state.servers, i)
			continue
		}
		d.state.servers[i] = is
	}
	for i, class := range r.classes {
		if d.state.classes[i] = class; class == 0 {
			delete(d.state.classes, i)
		}
	}
	d.state.hairpins.Note(r.hairpins)
	d.state.clusterIPs.Note(r.clusterIPs)
	d.state.externals.Note(r.externals)
	d.state.settings = r.settings
}

// Drain implements datapath.Datapath.
func (d *Datapath) Drain(ctx context.Context) (bool, error) { return datapath.Drained(d.Cleanup(ctx)) }

// Close implements datapath.Datapath.
func (d *Datapath) Close() { d.forget() }

// forget makes the next Sync read the kernel.
func (d *Datapath) forget() {
	d.applied, d.state = nil, nil
	d.rules.Forget()
	d.genl.close()
}

// Explain implements datapath.Datapath. It reads the complete state.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	return d.rules.Explain(ctx, k)
}

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	return d.rules.Adopt(ctx, d.applied == nil, (*state).table)
}

// table returns the kernel's state as a Table.
func (s *state) table() (*service.Table, error) {
	var all []*service.Frontend
	for k, f := range s.frontends {
		if f.internal == 0 {
			continue // an element without a verdict
		}
		frontend, err := s.frontend(k, f)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", k, err)
		}
		all = append(all, frontend)
	}
	return service.NewTable(s.settings, all), nil
}

// frontend returns the kernel's state of a frontend.
func (s *state) frontend(k service.Key, f *frontendState) (*service.Frontend, error) {
	n, err := parseComment(f.comment)
	if err != nil {
		return nil, err
	}
	inside := s.route(f.internal, serverID{f.server, k.Proto}, &n)
	inside.Local = n.local && inside.Action == service.Forward
	out := &service.Frontend{
		Addr: k.Addr, Proto: k.Proto, Service: n.service, Internal: inside, External: inside,
		ClusterIP: s.clusterIPs[k.Addr.Addr()] > 0, LoadBalancer: n.loadBalancer, Sources: f.sources.Prefixes(),
	}
	out.OnNode = out.OwnsAddress() && s.externals[k.Addr.Addr()] == 0
	if f.external != 0 {
		out.External = s.route(f.external, serverID{f.externalServer, k.Proto}, &n)
		out.External.Local = n.externalLocal && out.External.Action == service.Forward
	}
	out.Balance, out.Affinity = n.balance, n.affinity
	return out, nil
}

// route returns the route of a verdict and its virtual server. Where the virtual server differs from the comment n,
// route corrects n.
func (s *state) route(v nftset.VerdictID, at serverID, n *frontendComment) *service.Route {
	r := v.Route()
	held := s.servers[at]
	if r.Action != service.Forward || held == nil {
		return r
	}
	weighted := false
	for _, w := range held.reals {
		weighted = weighted || w > 1
	}
	for a, w := range held.reals {
		e := service.Endpoint{Addr: a, Local: s.hairpins[a.Addr()] > 0}
		if weighted {
			e.Weight = w
		}
		r.Endpoints = append(r.Endpoints, e)
	}
	slices.SortFunc(r.Endpoints, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	n.affinity = time.Duration(held.persist) * time.Second
	if held.sched != scheduler(n.balance, weighted) {
		if a, err := service.ParseAlgorithm(held.sched); err == nil {
			n.balance = a
		}
	}
	return r
}

// Counts implements datapath.Datapath.
func (d *Datapath) Counts(ctx context.Context) (map[api.PortName]datapath.Count, error) {
	all, err := d.genl.servers(ctx)
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	s := d.state
	if s == nil {
		if s, err = d.read(ctx); err != nil {
			return nil, fmt.Errorf("count: %w", err)
		}
	}
	counts := map[api.PortName]datapath.Count{}
	seen := map[serverID]bool{}
	for k, f := range s.frontends {
		n, err := parseComment(f.comment)
		if err != nil {
			continue // its comment cannot be read
		}
		for _, a := range [...]netip.AddrPort{f.server, f.externalServer} {
			for _, i := range (serverID{a, k.Proto}).withOverflow() {
				if v := all[i]; v != nil && !seen[i] {
					seen[i] = true
					c := counts[n.service]
					c.Connections += v.conns
					counts[n.service] = c
				}
			}
		}
	}
	return counts, nil
}

// Cleanup implements datapath.Datapath. Connections stay: conntrack carries them.
func (d *Datapath) Cleanup(ctx context.Context) error {
	defer d.forget()
	if err := d.rules.Table.Delete(ctx); err != nil {
		return err
	}
	if err := d.unprepare(); err != nil {
		return err
	}
	if d.genl.open(ctx) != nil {
		return nil // without IPVS there are no virtual servers
	}
	all, err := d.genl.servers(ctx)
	if err != nil {
		return err
	}
	var ops []serverOp
	for i := range all {
		ops = append(ops, serverOp{cmd: cmdDelServer, server: i})
	}
	return d.genl.do(ctx, ops)
}
