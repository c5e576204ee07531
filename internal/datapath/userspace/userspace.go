package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultMark is the bit of the packet mark that no other program uses by default.
const DefaultMark = numbers.MarkUserspace

// DefaultPort is the first of the listeners' ports on the loopback addresses: one for
// each scope. If they are taken, the next ones are.
const DefaultPort = numbers.PortUserspace

// Config says how the datapath works. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "to a socket of the proxy". It must
	// not be one that means "masquerade me" to somebody. 0: DefaultMark.
	Mark uint32
	// Port is the first port of the listeners. 0: DefaultPort.
	Port uint16
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	cfg    Config
	text   string // the program for people
	kernel *nft.Table
	watch  *nft.Watch
	proxy  *proxy               // nil: it does not run
	table  *service.Table       // what the kernel holds; nil: not known, read it
	uses   map[netip.Addr]int   // how many frontends reserve an address
	served map[service.Key]bool // what the proxy knows
	kept   map[id]element       // connections that the kernel hands over by themselves
	verify time.Time            // when Check may read the elements again
	reload bool                 // the rules were changed: load the program again
	gone   bool                 // released: it takes no new connection
}

var _ datapath.Datapath = (*Datapath)(nil)

// New returns a datapath. It does not touch the kernel and starts nothing.
func New(cfg Config) (*Datapath, error) {
	if cfg.Mark == 0 {
		cfg.Mark = DefaultMark
	}
	if cfg.Mark&(cfg.Mark-1) != 0 {
		return nil, fmt.Errorf("mark %#x is not one bit", cfg.Mark)
	}
	if cfg.Port == 0 {
		cfg.Port = DefaultPort
	}
	text, err := newProgram(cfg.Mark, cfg.Port).Text(tableName)
	if err != nil {
		return nil, err
	}
	t := nft.New(tableName)
	return &Datapath{cfg: cfg, kernel: t, watch: t.Watch(), text: text}, nil
}

// Info implements datapath.Datapath.
func (d *Datapath) Info() datapath.Info {
	return datapath.Info{Name: datapath.Userspace, Program: d.text, Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random, service.RoundRobin, service.LeastConn, service.SourceHash,
			service.DestHash, service.ShortestDelay, service.NeverQueue, service.Maglev),
		Protocols:    []service.Proto{service.TCP, service.UDP},
		Counts:       datapath.CountsConnections | datapath.CountsBytes | datapath.CountsDrops,
		CarriesFlows: true,
	}}
}

// FailWrites makes every write ask f first and fail with its error. It is for tests
// that inject faults.
func (d *Datapath) FailWrites(f func() error) { d.kernel.FailWrites(f) }

// Probe implements datapath.Datapath.
func (d *Datapath) Probe(ctx context.Context) error {
	if err := d.kernel.Probe(ctx); err != nil {
		return err
	}
	name := tableName + "-probe"
	err := nft.Try(ctx, "add table inet "+name+"\nadd chain inet "+name+" c { type filter hook prerouting priority mangle; }\n"+
		"add rule inet "+name+" c socket transparent 1 accept\nadd rule inet "+name+" c meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:1 accept\n")
	if err != nil {
		return fmt.Errorf("the kernel has no tproxy: %w [needs nft_tproxy and nft_socket]", err)
	}
	return nil
}

// Sync implements datapath.Datapath.
func (d *Datapath) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	stats, err := d.sync(ctx, want)
	if err != nil {
		d.forget() // the next Sync asks the kernel
		return stats, fmt.Errorf("sync userspace: %w", err)
	}
	return stats, nil
}

func (d *Datapath) sync(ctx context.Context, want *service.Table) (stats datapath.Stats, err error) {
	if d.proxy == nil {
		if d.proxy, err = start(d.cfg.Port); err != nil {
			return stats, err
		}
	}
	if err := d.watch.Begin(ctx); err != nil {
		return stats, err
	}
	d.gone = false
	stats.Full = d.table == nil
	loaded := false
	var h *held
	if stats.Full {
		if h, loaded, err = d.learn(ctx); err != nil {
			return stats, err
		}
	}
	var p *plan
	var changes []service.Change
	if stats.Full {
		p, changes = full(h, want), d.unknown(want)
	} else {
		p, changes = incremental(d.table, want), service.Diff(d.table, want)
	}
	if err := d.apply(ctx, p, h, want, changes); err != nil {
		return stats, err
	}
	if err := d.watch.End(ctx, loaded); err != nil {
		return stats, err
	}
	d.table = want
	stats.Frontends = len(p.fronts)
	for _, w := range p.writes() {
		if w.Add {
			stats.Added++
		}
		if w.Del {
			stats.Deleted++
		}
	}
	return stats, nil
}

// learn makes the kernel run the program and reads what it holds.
func (d *Datapath) learn(ctx context.Context) (h *held, loaded bool, err error) {
	p := newProgram(d.cfg.Mark, d.proxy.first)
	if err := steer(d.cfg.Mark); err != nil {
		return nil, false, err
	}
	if loaded, err = d.kernel.Load(ctx, p, d.reload); err != nil {
		return nil, false, err
	}
	if loaded {
		if err := d.kernel.Prune(ctx, p); err != nil {
			return nil, false, err
		}
	}
	if err := steerOnly(d.cfg.Mark); err != nil {
		return nil, false, err
	}
	if h, err = read(ctx, d.kernel); err != nil {
		return nil, false, err
	}
	if err := d.proxy.sticky.load(ctx, d.kernel); err != nil {
		return nil, false, err
	}
	if d.kept, err = readKept(ctx, d.kernel); err != nil {
		return nil, false, err
	}
	d.uses, d.reload = map[netip.Addr]int{}, false
	return h, true, nil // the watch shall look at the rules anew
}

// unknown returns the changes for a proxy that serves other frontends than want, without
// knowing which of them changed.
func (d *Datapath) unknown(want *service.Table) (changes []service.Change) {
	left := map[service.Key]bool{}
	for k := range d.served {
		left[k] = true
	}
	for f := range want.Frontends() {
		delete(left, f.Key())
		changes = append(changes, service.Change{New: f})
	}
	for k := range left {
		changes = append(changes, service.Change{Old: &service.Frontend{Addr: k.Addr, Proto: k.Proto}})
	}
	return changes
}

// apply makes p so. The proxy knows new frontends before the kernel sends anybody there,
// and old ones for as long as it does.
func (d *Datapath) apply(ctx context.Context, p *plan, h *held, want *service.Table, changes []service.Change) error {
	was, holds := service.Settings{}, map[netip.Addr]bool(nil)
	if h != nil {
		was, holds = h.settings, h.reserved
	} else {
		was = d.table.Settings
	}
	uses := p.reserving(d.uses, holds)
	p.settings(was, want.Settings)
	d.proxy.set(changes, want.Settings)
	if d.served == nil {
		d.served = map[service.Key]bool{}
	}
	for _, c := range changes {
		if c.New != nil {
			d.served[c.Key()] = true
		}
	}
	lost := d.lost(changes)
	if err := d.keep(ctx, lost); err != nil {
		return err
	}
	if err := d.kernel.Commit(ctx, nil, p.writes()); err != nil {
		return fmt.Errorf("write elements: %w", err)
	}
	for a, n := range uses {
		if d.uses[a] = n; n == 0 {
			delete(d.uses, a)
		}
	}
	d.proxy.drop(changes)
	fewer := h != nil || !was.Equal(want.Settings)
	for _, c := range changes {
		if c.New == nil {
			fewer = true
			delete(d.served, c.Key())
		}
	}
	if fewer {
		end(d.proxy.orphans())
	}
	return nil
}

// Check implements datapath.Datapath. It also copies to the kernel which clients are
// where, and takes away what connections that ended have left there.
func (d *Datapath) Check(ctx context.Context) (drift datapath.Drift, err error) {
	if d.table == nil {
		return drift, nil // the next Sync compares anyway
	}
	change, accept, err := d.watch.Look(ctx)
	if err != nil {
		return drift, err
	}
	ok, err := steered(d.cfg.Mark)
	if err != nil {
		return drift, err
	}
	if change == nft.Rules || !ok {
		d.reload = change == nft.Rules
		d.forget()
		return datapath.Drift{Rules: true}, nil
	}
	if change == nft.Elements && time.Now().After(d.verify) {
		began := time.Now()
		same, err := d.same(ctx)
		if err != nil {
			return drift, err
		}
		if !same {
			d.forget()
			return datapath.Drift{Elements: true}, nil
		}
		d.verify = time.Now().Add(verifyShare * time.Since(began))
		accept()
	}
	return drift, d.tidy(ctx)
}

// verifyShare bounds the time that Check spends reading: a twentieth.
const verifyShare = 20

// same reports whether the kernel holds what the last Sync left.
func (d *Datapath) same(ctx context.Context) (bool, error) {
	h, err := read(ctx, d.kernel)
	if err != nil {
		return false, err
	}
	p := full(h, d.table)
	p.reserving(nil, h.reserved)
	p.settings(h.settings, d.table.Settings)
	return len(p.writes()) == 0, nil
}

// tidy writes what time has changed.
func (d *Datapath) tidy(ctx context.Context) error {
	if err := d.watch.Begin(ctx); err != nil {
		return err
	}
	ws, done := d.proxy.sticky.writes(time.Now())
	over := d.over()
	for _, e := range over {
		ws = append(ws, e.write(true, false))
	}
	if err := d.kernel.Commit(ctx, nil, ws); err != nil {
		d.forget()
		return fmt.Errorf("write affinity: %w", err)
	}
	done()
	for _, e := range over {
		delete(d.kept, e.id())
	}
	return d.watch.End(ctx, false)
}

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	nothing := datapath.Adopted{Table: &service.Table{}}
	there, err := d.kernel.Chains(ctx)
	if err != nil {
		return nothing, fmt.Errorf("adopt userspace: %w", err)
	}
	if len(there) == 0 {
		return nothing, nil
	}
	h, err := read(ctx, d.kernel)
	if err != nil {
		return nothing, fmt.Errorf("adopt userspace: %w", err)
	}
	table, err := h.table()
	if err != nil {
		return nothing, fmt.Errorf("adopt userspace: %w", err)
	}
	return datapath.Adopted{Table: table, Found: true}, nil
}

// EndFlows implements datapath.Datapath.
func (d *Datapath) EndFlows(_ context.Context, flows []flow.Flow) (result flow.Result, err error) {
	if d.proxy == nil {
		return result, nil
	}
	for _, f := range flows {
		all := d.proxy.sessions.of(service.Key{Addr: f.Frontend, Proto: f.Proto}, f.Endpoint)
		if f.OnlyUnserved {
			all = slices.DeleteFunc(all, func(s *session) bool {
				return d.table == nil || d.table.Settings.ServesNodePorts(s.dest.Addr())
			})
		}
		switch {
		case len(all) == 0:
		case f.Unconfirmed:
			result.Unconfirmed = append(result.Unconfirmed, f)
		default:
			end(all)
			result.Ended += len(all)
		}
	}
	return result, nil
}

// Counts implements datapath.Datapath.
func (d *Datapath) Counts(ctx context.Context) (map[service.PortName]datapath.Count, error) {
	if d.proxy == nil {
		return nil, nil
	}
	return d.proxy.counts(), nil
}

// Cleanup implements datapath.Datapath. The connections it carries end.
func (d *Datapath) Cleanup(ctx context.Context) error {
	d.stop()
	if err := errors.Join(d.kernel.Delete(ctx), unsteerAll()); err != nil {
		return fmt.Errorf("clean up userspace: %w", err)
	}
	return nil
}

// Close implements datapath.Datapath. It ends all goroutines and connections.
func (d *Datapath) Close() {
	if d.proxy != nil && d.table != nil {
		// The clients of the last seconds. What cannot be written is forgotten.
		_ = d.proxy.place.do(func() error { return d.tidy(context.Background()) })
	}
	d.stop()
}

func (d *Datapath) stop() {
	d.forget()
	if d.proxy != nil {
		d.proxy.close()
		d.proxy, d.served = nil, nil
	}
}

// forget makes the next Sync ask the kernel.
func (d *Datapath) forget() {
	d.table = nil
	d.watch.Reset()
	d.kernel.Close()
}
