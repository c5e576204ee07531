package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// DefaultMark is a bit of the packet mark that no other program uses by default.
const DefaultMark = numbers.MarkUserspace

// DefaultPort is the first port of the listeners on the loopback addresses. There is one port for each scope. If a port
// is in use, later ports are used.
const DefaultPort = numbers.PortUserspace

// Config configures the datapath. The zero value works.
type Config struct {
	// Mark is the bit of the packet mark that means "to a socket of the proxy". Another program must not use the bit to
	// mean "masquerade me". 0: DefaultMark.
	Mark uint32
	// Port is the first port of the listeners. 0: DefaultPort.
	Port uint16
	// Descriptors is the number of open files for connections. 0: the limit of the process, less a reserve for the
	// agent.
	Descriptors int
	// Log gets a message, at most one a minute, when clients are refused or wait because a resource is used up. Nil: no
	// messages.
	Log *slog.Logger
	// Gate is asked before each connection to an endpoint. Nil: all connections are allowed.
	Gate *flow.Gate
}

// Datapath implements datapath.Datapath.
type Datapath struct {
	cfg      Config
	text     string // the ruleset, as people read it
	rules    *nftset.Syncer[*kernelState]
	proxy    *proxy         // nil while the proxy does not run
	table    *service.Table // the table of the last Sync; nil: read the kernel
	owned    ownedAddresses
	served   map[service.Key]bool  // the proxy's frontends
	orphaned map[elementID]element // elements of connections without a frontend
	draining bool                  // Drain was called: no new connections
}

var _ datapath.Datapath = (*Datapath)(nil)

// New returns a datapath. It does not touch the kernel, and starts no goroutine.
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
	d := &Datapath{cfg: cfg, text: text}
	d.rules = nftset.NewSyncer(datapath.Userspace, nft.New(tableName), d.read)
	return d, nil
}

// Info implements datapath.Datapath.
func (d *Datapath) Info() datapath.Info {
	return datapath.Info{Name: datapath.Userspace, Program: d.text, Capabilities: datapath.Capabilities{
		Algorithms: service.AlgorithmsOf(service.Random, service.RoundRobin, service.LeastConn, service.SourceHash,
			service.DestHash, service.ShortestDelay, service.NeverQueue, service.Maglev),
		Protocols:    []api.Proto{api.TCP, api.UDP},
		Counts:       datapath.CountsConnections | datapath.CountsBytes | datapath.CountsDrops,
		CarriesFlows: true,
	}}
}

// FailWrites makes every write call f first, and fail with its error. Tests inject faults with it.
func (d *Datapath) FailWrites(f func() error) { d.rules.Table.FailWrites(f) }

// Probe implements datapath.Datapath.
func (d *Datapath) Probe(ctx context.Context) error {
	if err := mayBind(); err != nil {
		return err
	}
	if err := d.rules.Table.Probe(ctx); err != nil {
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
		d.forget() // the next Sync reads the kernel
		return stats, fmt.Errorf("sync userspace: %w", err)
	}
	return stats, nil
}

func (d *Datapath) sync(ctx context.Context, want *service.Table) (stats datapath.Stats, err error) {
	if d.proxy == nil {
		if d.proxy, err = start(d.cfg); err != nil {
			return stats, err
		}
	}
	d.draining = false
	stats.Full = d.table == nil
	var (
		p       *changeset
		changes []service.Change
		was     service.Settings
	)
	if stats.Full {
		h, err := d.readKernel(ctx)
		if err != nil {
			return stats, err
		}
		p, changes, was = fullChangeset(h, want), d.allChanges(want), h.settings
	} else {
		changes, was = service.Diff(d.table, want), d.table.Settings
		p = incremental(changes)
	}
	if err := d.rules.Watch.Begin(ctx); err != nil {
		return stats, err
	}
	p.shared(was, want.Settings, d.owned, changes, stats.Full)
	if err := d.apply(ctx, p, want, changes, stats.Full || !was.Equal(want.Settings)); err != nil {
		return stats, err
	}
	if err := d.rules.End(ctx, d.program(), nftset.Chains{}); err != nil {
		return stats, err
	}
	d.table = want
	stats.Frontends = len(p.frontends)
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

// program returns the ruleset for the ports of the listeners.
func (d *Datapath) program() *nft.Ruleset { return newProgram(d.cfg.Mark, d.proxy.first) }

// readKernel prepares the table and reads the kernel's state.
func (d *Datapath) readKernel(ctx context.Context) (*kernelState, error) {
	if err := steer(d.cfg.Mark); err != nil {
		return nil, err
	}
	h, _, err := d.rules.Begin(ctx, d.program())
	if err != nil {
		return nil, err
	}
	d.proxy.affinity.load(h.affinity)
	d.orphaned, d.owned = h.orphans, h.owned
	return h, nil
}

// allChanges returns the changes from the proxy's frontends to the table want. It does not know which frontends differ,
// so every frontend of want is a change.
func (d *Datapath) allChanges(want *service.Table) (changes []service.Change) {
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

// apply writes p. The proxy serves new frontends before the kernel sends packets to them, and old frontends until the
// kernel stops.
//
// Set fewer if the settings may have changed: then UDP flows to a NodePort may have lost their frontend.
func (d *Datapath) apply(ctx context.Context, p *changeset, want *service.Table, changes []service.Change, fewer bool) error {
	d.proxy.set(changes, want.Settings)
	if d.served == nil {
		d.served = map[service.Key]bool{}
	}
	for _, c := range changes {
		if c.New != nil {
			d.served[c.Key()] = true
		}
	}
	lost := d.losingFrontend(changes)
	if err := d.addOrphans(ctx, lost); err != nil {
		return err
	}
	if err := d.rules.Commit(ctx, nil, p.writes()); err != nil {
		return fmt.Errorf("write elements: %w", err)
	}
	if d.table == nil {
		if err := d.rules.Switch(ctx, d.program()); err != nil {
			return err
		}
		if err := steerOnly(d.cfg.Mark); err != nil {
			return err
		}
	}
	for i, changed := range p.owned {
		d.owned[i].Note(changed)
	}
	d.proxy.removeGone(changes, d.table == nil)
	for _, c := range changes {
		if c.New == nil {
			fewer = true
			delete(d.served, c.Key())
		}
	}
	if fewer {
		endSessions(d.proxy.unservedFlows())
	}
	return nil
}

// Check implements datapath.Datapath. It also copies the affinity of clients to the kernel, and removes the elements of
// ended connections.
func (d *Datapath) Check(ctx context.Context) (drift datapath.Drift, err error) {
	drift, err = d.rules.Check(ctx, nftset.Checks{
		Synced: d.table != nil, Forget: d.forget,
		Routed: func() (bool, error) { return steered(d.cfg.Mark) },
		Same:   func(bool) (bool, error) { return d.kernelMatches(ctx) },
	})
	if drift.Any() || err != nil || d.table == nil {
		return drift, err
	}
	return drift, d.writeDeferred(ctx)
}

// kernelMatches reports whether the kernel has the state of the last Sync.
func (d *Datapath) kernelMatches(ctx context.Context) (bool, error) {
	h, err := d.read(ctx)
	if err != nil {
		return false, err
	}
	p := fullChangeset(h, d.table)
	p.shared(h.settings, d.table.Settings, h.owned, d.allChanges(d.table), true)
	return len(p.writes()) == 0, nil
}

// writeDeferred writes the changes that traffic and time have made since the last Sync.
func (d *Datapath) writeDeferred(ctx context.Context) error {
	if err := d.rules.Watch.Begin(ctx); err != nil {
		return err
	}
	ws, done := d.proxy.affinity.writes(time.Now())
	over := d.endedOrphans()
	for _, e := range over {
		ws = append(ws, e.write(true, false))
	}
	if err := d.rules.Commit(ctx, nil, ws); err != nil {
		d.forget()
		return fmt.Errorf("write affinity: %w", err)
	}
	done()
	for _, e := range over {
		delete(d.orphaned, e.id())
	}
	return d.rules.Watch.End(ctx, false)
}

// Explain implements datapath.Datapath. It reads the complete state.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	return d.rules.Explain(ctx, k)
}

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	return d.rules.Adopt(ctx, d.table == nil, (*kernelState).table)
}

// Ejected implements datapath.Datapath. A connection that fails goes to another endpoint at once.
func (d *Datapath) Ejected(context.Context) ([]datapath.Ejection, error) { return nil, nil }

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
		case len(all) == 0, f.OnlyUnanswered: // the proxy itself tries another endpoint if one does not answer
		case f.Unconfirmed:
			result.Unconfirmed = append(result.Unconfirmed, f)
		default:
			endSessions(all)
			result.Ended += len(all)
		}
	}
	return result, nil
}

// Counts implements datapath.Datapath.
func (d *Datapath) Counts(ctx context.Context) (map[api.PortName]datapath.Count, error) {
	if d.proxy == nil {
		return nil, nil
	}
	return d.proxy.counts(), nil
}

// Cleanup implements datapath.Datapath. It ends all connections.
func (d *Datapath) Cleanup(ctx context.Context) error {
	d.stop()
	if err := errors.Join(d.rules.Table.Delete(ctx), unsteerAll()); err != nil {
		return fmt.Errorf("clean up userspace: %w", err)
	}
	return nil
}

// Close implements datapath.Datapath. It ends all goroutines and connections.
func (d *Datapath) Close() {
	if d.proxy != nil && d.table != nil {
		// Write the affinity of the last seconds. An error loses it.
		_ = d.proxy.netns.do(func() error { return d.writeDeferred(context.Background()) })
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

// forget makes the next Sync read the kernel.
func (d *Datapath) forget() {
	d.table = nil
	d.rules.Forget()
}
