package ipvs

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

//go:embed ruleset.nft.tmpl
var rulesetText string

// DefaultMark is kube-proxy's: bit 14.
const DefaultMark = numbers.MarkMasquerade

// DefaultDrain is kube-proxy's.
const DefaultDrain = 15 * time.Minute

// Config says how the datapath works. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "masquerade me". 0: DefaultMark.
	Mark uint32
	// Drain is how long an endpoint that has left may stay, without new connections,
	// while IPVS counts some of its old ones. 0: DefaultDrain.
	Drain time.Duration
	// TCPTimeout, FinTimeout and UDPTimeout are how long IPVS remembers connections, open
	// or half closed ones and UDP flows: for its counts and for affinity. 0 leaves the
	// kernel's values. They hold for all of the node's IPVS.
	TCPTimeout, FinTimeout, UDPTimeout time.Duration
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	cfg   Config
	drain time.Duration
	table *nft.Table
	watch *nft.Watch
	wire  *wire

	synced *service.Table // what the kernel holds; nil: not known, read it
	state  *state         // the same, as it is held
	verify time.Time      // when Check may read again
	reload bool           // the rules were changed: load the program again
	offers service.Algorithms
	text   string // the program for people
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
	d := &Datapath{cfg: cfg, drain: cfg.Drain, table: nft.New(tableName), wire: &wire{}}
	d.watch = d.table.Watch()
	var err error
	if d.text, err = d.program().Text(tableName); err != nil {
		return nil, err
	}
	return d, nil
}

// Info implements datapath.Datapath. IPVS sees the first packet of a connection and its
// replies, so that packets and bytes would be half the truth: they are not counted.
func (d *Datapath) Info() datapath.Info {
	return datapath.Info{Name: datapath.IPVS, Program: d.text, Capabilities: datapath.Capabilities{
		Algorithms: d.algorithms(),
		Protocols:  []service.Proto{service.TCP, service.UDP, service.SCTP},
		Counts:     datapath.CountsConnections,
	}}
}

// algorithms returns all of IPVS' that the kernel has, and Random,
// which is one after the other here. It tries each scheduler on a virtual server that
// lives for a moment.
func (d *Datapath) algorithms() service.Algorithms {
	if d.offers != 0 {
		return d.offers
	}
	all := []service.Algorithm{
		service.RoundRobin, service.LeastConn, service.SourceHash, service.DestHash,
		service.ShortestDelay, service.NeverQueue, service.Maglev,
	}
	w := &wire{}
	defer w.close()
	if w.open(context.Background()) != nil {
		return service.AlgorithmsOf(append(all[:6], service.Random)...) // Probe says why
	}
	probe := id{netip.AddrPortFrom(own4.Addr(), serverPortNumber), service.TCP}
	offers := service.AlgorithmsOf(service.Random)
	for _, a := range all {
		s := &server{sched: scheduler(a, false)}
		if err := w.do(context.Background(), []op{{cmd: cmdNewServer, id: probe, server: s}}); err != nil && !errors.Is(err, unix.EEXIST) {
			continue
		}
		offers |= service.AlgorithmsOf(a)
		if err := w.do(context.Background(), []op{{cmd: cmdDelServer, id: probe}}); err != nil {
			break // the next Sync removes it
		}
	}
	d.offers = offers
	return offers
}

// FailWrites makes every write ask f first and fail with its error. It is for tests that
// inject faults.
func (d *Datapath) FailWrites(f func() error) {
	d.table.FailWrites(f)
	d.wire.fail = f
}

func (d *Datapath) program() *nft.Program {
	return &nft.Program{Source: rulesetText, Data: map[string]any{
		"Mark": fmt.Sprintf("%#x", d.cfg.Mark), "Own4": own4, "Own6": own6, "DropInvalid": !liberal(),
	}}
}

// liberal reports whether the node takes TCP packets out of window for valid.
func liberal() bool {
	value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(string(value)) != "0"
}

// Probe implements datapath.Datapath.
func (d *Datapath) Probe(ctx context.Context) error {
	w := &wire{}
	defer w.close()
	return errors.Join(d.table.Probe(ctx), w.open(ctx))
}

// errChanged says that our rules are not what we left. The next Sync loads them again.
var errChanged = errors.New("another hand has changed table " + tableName)

// Sync implements datapath.Datapath.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats, err := d.sync(ctx, want)
	if err != nil {
		d.forget() // the next Sync asks the kernel
		return stats, fmt.Errorf("sync ipvs: %w", err)
	}
	return stats, nil
}

func (d *Datapath) sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats := datapath.Stats{Full: d.synced == nil}
	if stats.Full {
		if err := d.learn(ctx); err != nil {
			return stats, err
		}
	} else if err := d.watch.Begin(ctx); err != nil {
		return stats, err
	}
	r, err := d.render(want, stats.Full)
	if err != nil {
		return stats, err
	}
	if len(r.writes) == 0 && len(r.before)+len(r.after) > 0 {
		// A table that somebody has removed is noticed by writes, but there are none.
		if change, _, err := d.watch.Look(ctx); err != nil || change == nft.Rules {
			d.reload = true
			return stats, errors.Join(err, errChanged)
		}
	}
	if err := d.apply(ctx, r); err != nil {
		return stats, err
	}
	if err := d.watch.End(ctx, stats.Full); err != nil {
		return stats, err
	}
	d.synced = want
	stats.Frontends = len(r.changed)
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

// learn makes the node fit, loads the program if it is not there and reads what the
// kernel holds.
func (d *Datapath) learn(ctx context.Context) error {
	if err := d.wire.open(ctx); err != nil {
		return err
	}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	loaded, err := d.table.Load(ctx, d.program(), d.reload)
	if err != nil {
		return err
	}
	d.reload = false
	if loaded {
		if err := d.table.Prune(ctx, d.program()); err != nil {
			return err
		}
	}
	d.watch.Reset()
	if err := d.watch.Begin(ctx); err != nil {
		return err
	}
	d.state, err = d.read(ctx)
	return err
}

// apply does r and, if that succeeds, takes note of it.
func (d *Datapath) apply(ctx context.Context, r *rendering) error {
	if err := d.wire.do(ctx, r.before); err != nil {
		return err
	}
	if err := d.table.Commit(ctx, nil, r.writes); err != nil {
		return err
	}
	if err := d.wire.do(ctx, r.after); err != nil {
		return err
	}
	d.note(r)
	return nil
}

// note takes over what r has done.
func (d *Datapath) note(r *rendering) {
	for k, is := range r.fronts {
		if is.equal(&front{}) {
			delete(d.state.fronts, k)
			continue
		}
		d.state.fronts[k] = is
	}
	for i, is := range r.servers {
		if is == nil {
			delete(d.state.servers, i)
			continue
		}
		d.state.servers[i] = is
	}
	counts := func(all, changed map[netip.Addr]int) {
		for a, n := range changed {
			if n == 0 {
				delete(all, a)
				continue
			}
			all[a] = n
		}
	}
	counts(d.state.hairpins, r.hairpins)
	counts(d.state.reserved, r.reserved)
	d.state.settings = r.settings
}

// EndFlows implements datapath.Datapath: conntrack carries all flows.
func (d *Datapath) EndFlows(context.Context, []flow.Flow) (flow.Result, error) {
	return flow.Result{}, nil
}

// Drain implements datapath.Datapath: conntrack and the other mode's NAT rules are all that
// established connections need.
func (d *Datapath) Drain(ctx context.Context) (done bool, err error) {
	err = d.Cleanup(ctx)
	return err == nil, err
}

// Close implements datapath.Datapath.
func (d *Datapath) Close() { d.forget() }

// forget makes the next Sync ask the kernel.
func (d *Datapath) forget() {
	d.synced, d.state = nil, nil
	d.table.Close()
	d.wire.close()
	d.watch.Reset()
}

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	nothing := datapath.Adopted{Table: &service.Table{}}
	there, err := d.table.Chains(ctx)
	if err != nil {
		return nothing, fmt.Errorf("adopt ipvs: %w", err)
	}
	if len(there) == 0 {
		return nothing, nil
	}
	s, err := d.read(ctx)
	if err != nil {
		return nothing, fmt.Errorf("adopt ipvs: %w", err)
	}
	var all []*service.Frontend
	for k, f := range s.fronts {
		if f.inside == 0 {
			continue // it does nothing
		}
		frontend, err := s.frontend(k, f)
		if err != nil {
			return nothing, fmt.Errorf("adopt ipvs: %v: %w", k, err)
		}
		all = append(all, frontend)
	}
	return datapath.Adopted{Table: service.NewTable(s.settings, all), Found: true}, nil
}

// frontend translates what is held for k.
func (s *state) frontend(k service.Key, f *front) (*service.Frontend, error) {
	n, err := parseNote(f.comment)
	if err != nil {
		return nil, err
	}
	inside := s.route(f.inside, id{f.server, k.Proto}, &n)
	inside.Local = n.local && inside.Action == service.Forward
	out := &service.Frontend{
		Addr: k.Addr, Proto: k.Proto, Service: n.service, Internal: inside, External: inside,
		ClusterIP: s.reserved[k.Addr.Addr()] > 0,
	}
	for _, r := range f.sources {
		out.Sources = append(out.Sources, r.Prefixes()...)
	}
	if f.outside != 0 {
		out.External = s.route(f.outside, id{f.outsideServer, k.Proto}, &n)
		out.External.Local = n.externalLocal && out.External.Action == service.Forward
	}
	out.Balance, out.Affinity = n.balance, n.affinity
	return out, nil
}

// route translates a how and its virtual server. Where that does something else than the
// note says, n is set to what it does.
func (s *state) route(h how, at id, n *note) *service.Route {
	r := h.route()
	v := s.servers[at]
	if r.Action != service.Forward || v == nil {
		return r
	}
	weighted := false
	for _, w := range v.reals {
		weighted = weighted || w > 1
	}
	for a, w := range v.reals {
		e := service.Endpoint{Addr: a, Local: s.hairpins[a.Addr()] > 0}
		if weighted {
			e.Weight = w
		}
		r.Endpoints = append(r.Endpoints, e)
	}
	slices.SortFunc(r.Endpoints, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	n.affinity = time.Duration(v.persist) * time.Second
	if v.sched != scheduler(n.balance, weighted) {
		if a, err := service.ParseAlgorithm(v.sched); err == nil {
			n.balance = a
		}
	}
	return r
}

// Counts implements datapath.Datapath.
func (d *Datapath) Counts(ctx context.Context) (map[service.PortName]datapath.Count, error) {
	all, err := d.wire.servers(ctx)
	if err != nil {
		return nil, fmt.Errorf("count: %w", err)
	}
	s := d.state
	if s == nil {
		if s, err = d.read(ctx); err != nil {
			return nil, fmt.Errorf("count: %w", err)
		}
	}
	counts := map[service.PortName]datapath.Count{}
	seen := map[id]bool{}
	for k, f := range s.fronts {
		n, err := parseNote(f.comment)
		if err != nil {
			continue // it does nothing
		}
		for _, a := range [...]netip.AddrPort{f.server, f.outsideServer} {
			i := id{a, k.Proto}
			if v := all[i]; v != nil && !seen[i] {
				seen[i] = true
				c := counts[n.service]
				c.Connections += v.conns
				counts[n.service] = c
			}
		}
	}
	return counts, nil
}

// Cleanup implements datapath.Datapath. Connections stay: conntrack carries them.
func (d *Datapath) Cleanup(ctx context.Context) error {
	defer d.forget()
	if err := d.table.Delete(ctx); err != nil {
		return err
	}
	if err := d.unprepare(); err != nil {
		return err
	}
	if d.wire.open(ctx) != nil {
		return nil // without IPVS there is nothing of ours in it
	}
	all, err := d.wire.servers(ctx)
	if err != nil {
		return err
	}
	var ops []op
	for i := range all {
		ops = append(ops, op{cmd: cmdDelServer, id: i})
	}
	return d.wire.do(ctx, ops)
}
