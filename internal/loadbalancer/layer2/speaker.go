package layer2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
)

// A Source is what a speaker reads from the API server. Several goroutines may call it.
type Source interface {
	announce.Feed
	Input() announce.Input
	Voters() election.Voters
	SetVoters(context.Context, election.Voters) error
	// Vote asks for the vote of a Lease, and ReturnVote gives it back. until is when it ends, by
	// this process' clock; the zero time: another has it.
	Vote(context.Context) (until time.Time, err error)
	ReturnVote(context.Context) error
}

// Config says how a Speaker works. All fields but Owners, Granted, Unfit and Stateless are required.
type Config struct {
	Log    *slog.Logger
	Node   string // we run on
	Key    []byte // of all speakers
	Port   uint16 // of heartbeats
	Source Source
	// Assigned is called with the addresses that this node announces for each Service, and on
	// which interfaces, when they change.
	Assigned func(map[api.Name]Assignment)
	// Dead is called with the nodes that a majority of the voters declares dead, sorted, with
	// every beat in which a majority is heard.
	Dead func(nodes []string)
	// Owners is called with the nodes that announce the addresses of Services with Egress, when they change;
	// empty: none does. It must not wait. Nil: nobody asks.
	Owners func(map[netip.Addr]string)
	// Granted is called when that changes with whether the voters grant this node what it asks for. It must not wait.
	// Nil: nobody asks.
	Granted func(announce.Standing)
	// Event tells the owner of a Service.
	Event   func(api.Name, api.Problem)
	Metrics *Metrics
	// Unfit says why this node should leave its addresses to another one that is better off; empty: it
	// should not. It is called with every beat. Nil: it never should.
	Unfit func() string
	// Stateless: the next owner of an address carries open connections on without the one before it, so
	// that nothing waits for one that is dead.
	Stateless bool
}

const (
	// ticksPerBeat is how many times in a beat a change can be asked for: with fence.Slots
	// slots, none is used twice while a grant lasts.
	ticksPerBeat = 4
	// goodbyes is how often a speaker that ends says so: packets get lost, and a node that falls
	// silent without it is dead to the others.
	goodbyes = 3
	// maxTasks bounds what runs beside the loop: probes and writes.
	maxTasks = 64
	// aliveWithin is how long the loop may be silent; a Source may need that long at the start.
	aliveWithin = 2 * time.Minute
	// conflictPause is the least time between two conflicts in the log; metrics count all.
	conflictPause = time.Second
	// freshFor is how long an address that appears may be one that no node has announced.
	freshFor = 10 * time.Second
)

// An Assignment is what a node announces of a Service.
type Assignment struct {
	Addrs      []netip.Addr
	Interfaces []string
}

// A Speaker is one node's. Run runs it once.
type Speaker struct {
	cfg      Config
	start    time.Time
	member   *election.Member
	fence    *fence.Fence
	arp      *arp.Announcer
	net      *transport
	checks   *checks
	deadline atomic.Int64 // until when the last grant lasts, since start
	alive    atomic.Int64 // when the loop last ran, since start
	// nextConflict is when a conflict is in the log again, since start.
	nextConflict atomic.Int64

	readings   chan reading
	decisions  map[netip.Addr]*announce.Decision // of the last reading
	owners     owners
	nodes      []string
	addrs      map[string][]netip.Addr // of the nodes
	formers    formers
	formerly   fence.Elsewhere // what the fence was told of them
	neighbours *neighbours
	passing    chan struct{} // closed by passes
	passes     func()
	// carriersChanged: the nodes that may have connections by way of routers, of some address.
	carriersChanged bool
	unannounced     map[netip.Addr]time.Time // may never have been announced by any node, since then
	probed          chan probeResult
	probing         map[netip.Addr]bool
	taken           map[netip.Addr]time.Time // another machine has it: when to look again
	since           map[netip.Addr]time.Time
	devices         chan []arp.Interface
	links           links
	back            holdBack
	routes          *routeWatch
	waits           bool        // was cut off
	unfit           string      // as Unfit said last
	tooMany         bool        // more addresses are ours than a node can have
	broken          bool        // the fence does not hold what the member says
	soon            bool        // the next beat comes with the next tick
	voting          atomic.Bool // a list of voters is being written
	wrote           time.Time   // the last one
	lease           lease
	granted         announce.Standing // as Granted was told last
	tasks           errgroup.Group
}

// New returns a Speaker.
func New(cfg Config) *Speaker {
	s := &Speaker{
		cfg: cfg, start: time.Now(), checks: newChecks(), unannounced: map[netip.Addr]time.Time{}, probing: map[netip.Addr]bool{}, routes: newRouteWatch(),
		formers: newFormers(), neighbours: newNeighbours(cfg.Log), readings: make(chan reading), probed: make(chan probeResult, 16), taken: map[netip.Addr]time.Time{}, since: map[netip.Addr]time.Time{}, devices: make(chan []arp.Interface, 1),
	}
	s.passing = make(chan struct{})
	s.passes = sync.OnceFunc(func() { close(s.passing) })
	s.tasks.SetLimit(maxTasks)
	s.arp = arp.New(arp.Config{Log: cfg.Log, Allowed: s.allowed, Conflict: s.conflict, Count: cfg.Metrics.frame, Interfaces: s.interfaces})
	return s
}

// Healthy says why the speaker does not work, if it does not: nothing has happened in its loop
// for a while.
func (s *Speaker) Healthy() error {
	if idle := s.now() - time.Duration(s.alive.Load()); idle > aliveWithin {
		return fmt.Errorf("the speaker's loop has not run for %v", idle.Round(time.Second))
	}
	return nil
}

// Passing is closed when this node's kernel knows which others may know connections that routers lead here, and it does not.
func (s *Speaker) Passing() <-chan struct{} { return s.passing }

// now is the time that the election counts by.
func (s *Speaker) now() time.Duration { return time.Since(s.start) }

// allowed reports whether the last grant lasts.
func (s *Speaker) allowed(netip.Addr) bool { return int64(s.now()) < s.deadline.Load() }

// conflict is called by the announcer, with its lock held. Who claims thousands of addresses again and again fills no disk.
func (s *Speaker) conflict(a netip.Addr, device string, mac arp.MAC) {
	s.cfg.Metrics.conflicts.Inc()
	now := s.now()
	if int64(now) < s.nextConflict.Load() {
		return
	}
	s.nextConflict.Store(int64(now + conflictPause))
	s.cfg.Log.Warn("another machine answers for an address that this node announces [is the address given to a machine, or does another load balancer announce it?]",
		"address", a, "interface", device, "mac", mac)
}

// interfaces is called by the announcer when they change.
func (s *Speaker) interfaces(all []arp.Interface) {
	select {
	case <-s.devices: // an older one
	default:
	}
	s.devices <- all
}

// Run announces until ctx ends, which is no error.
func (s *Speaker) Run(ctx context.Context) error {
	var err error
	if s.fence, err = fence.Open(ctx, election.DefaultTiming.Grant); err != nil {
		return err
	}
	defer s.fence.Close()
	if err := s.fence.FormerError(); err != nil {
		s.cfg.Log.Warn("packets of connections cannot be sent to the former owner of an address: they end when it moves", "err", err)
	}
	if s.net, err = listen(ctx, s.cfg.Port, s.cfg.Key, s.cfg.Metrics.refused.Inc); err != nil {
		return err
	}
	s.member = election.New(election.Config{Self: s.cfg.Node, Key: s.cfg.Key, Start: s.now(), Timing: election.DefaultTiming,
		Random: func() uint64 { return rand.Uint64() | 1 }})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(s.net.run)
	g.Go(func() error { return s.arp.Run(ctx) })
	g.Go(func() error { return s.checks.run(ctx) })
	g.Go(func() error { return s.routes.run(ctx) })
	g.Go(func() error { return s.follow(ctx) })
	g.Go(func() error { return s.neighbours.run(ctx) })
	g.Go(func() error {
		defer s.net.conn.Close()
		return s.loop(ctx)
	})
	return errors.Join(g.Wait(), s.tasks.Wait())
}

// loop is all that the member and the fence are told, in one goroutine.
func (s *Speaker) loop(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case r := <-s.readings:
		s.take(ctx, r, true)
	}
	tick := time.NewTicker(election.DefaultTiming.Beat / ticksPerBeat)
	defer tick.Stop()
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	for ticks := 0; ; {
		if at, ok := s.member.WakeAt(); ok {
			wake.Reset(max(0, at-s.now()))
		}
		select {
		case <-ctx.Done():
			return s.leave()
		case data := <-s.net.inbox:
			packets, err := s.member.Receive(s.now(), data)
			if err != nil {
				s.cfg.Metrics.refused.Inc()
			}
			s.sent(packets)
		case <-wake.C:
			s.sent(s.member.Wake(s.now()))
		case <-tick.C:
			if ticks++; ticks%ticksPerBeat == 0 || s.soon {
				s.soon = false
				s.beat(ctx)
			}
		case r := <-s.readings:
			s.take(ctx, r, false)
		case <-s.checks.wake:
			s.soon = true
		case d := <-s.devices:
			s.deviced(ctx, d)
		case all := <-s.neighbours.read:
			s.neighboured(ctx, all)
		case r := <-s.probed:
			s.probeDone(r)
		}
		s.apply(ctx)
		s.publishOwners()
		s.alive.Store(int64(s.now()))
	}
}

func (s *Speaker) sent(packets []election.Packet) {
	n := s.net.send(packets)
	s.cfg.Metrics.messages.Add(float64(len(packets)))
	s.cfg.Metrics.bytes.Add(float64(n))
}

// beat says what we want and asks for it.
func (s *Speaker) beat(ctx context.Context) {
	if s.broken {
		s.mend(ctx, nil)
	}
	dead, ok := s.member.Dead()
	if ok {
		s.cfg.Dead(slices.Sorted(maps.Keys(dead)))
	}
	s.reportGrant()
	s.back.note(ok, time.Now())
	s.leaseVote(ctx)
	s.ready()
	s.claim(ctx, dead)
	switch err := s.fence.Ticket(s.member.NextSlot()); {
	case errors.Is(err, fence.ErrGone):
		s.mend(ctx, err)
		return
	case err != nil:
		return // the slot is still in use: too soon
	}
	s.sent(s.member.Beat(s.now()))
	s.vote(ctx)
}

// mend loads the fence anew, with what the member says. Until that succeeds nothing is
// confirmed.
func (s *Speaker) mend(ctx context.Context, why error) {
	if why != nil {
		s.cfg.Log.Warn("the fence is loaded again", "err", why)
	}
	s.cfg.Metrics.fenceLoads.Inc()
	granted := slices.DeleteFunc(slices.Clone(s.member.Claimed()), func(a netip.Addr) bool { return !s.member.Granted(a) })
	err := s.fence.Reload(ctx, granted)
	if s.broken = err != nil; s.broken {
		s.cfg.Log.Error("this node announces nothing: the fence cannot be loaded", "err", err)
	}
}

// claim tells the member what the node wants, while those nodes are dead.
func (s *Speaker) claim(ctx context.Context, dead map[string]bool) {
	out, ok := s.member.Out()
	if !ok {
		// Nothing is known; what is claimed stays, but not for long: voters that hear the node, and that
		// it does not hear, would promise it to nobody else.
		if s.back.isolated(time.Now()) {
			s.want(ctx, nil)
		}
		return
	}
	v := claimView{
		self: s.cfg.Node, decisions: s.decisions, out: out, dead: dead, granted: s.member.Granted, contested: s.member.Contested(),
		served: s.checks.served, since: s.since, now: time.Now(), formers: &s.formers,
	}
	want, moved := v.claims()
	s.updateFormers(ctx, v, moved)
	s.owners.view(v)
	if many := len(want) > election.MaxAddrs; many != s.tooMany {
		if s.tooMany = many; many {
			s.cfg.Log.Error("more addresses are this node's than it can announce: the last ones are announced by nobody [let fewer Services have an address, or more nodes announce them]", "addresses", len(want), "most", election.MaxAddrs)
		}
	}
	s.want(ctx, slices.DeleteFunc(want, func(a netip.Addr) bool { return time.Now().Before(s.taken[a]) }))
}

// want tells the member what the node asks for; what it gives up leaves the fence first.
func (s *Speaker) want(ctx context.Context, want []netip.Addr) {
	wanted := make(map[netip.Addr]bool, len(want)) // every beat: 10,000 addresses must cost nothing that shows
	for _, a := range want {
		wanted[a] = true
	}
	drop := slices.DeleteFunc(slices.Clone(s.member.Claimed()), func(a netip.Addr) bool { return wanted[a] })
	if len(drop) > 0 {
		s.formers.leave(drop)
		s.former()
		if err := s.release(ctx, drop); err != nil {
			return // it stays claimed
		}
	}
	s.member.Claim(want)
	if len(drop) > 0 {
		s.announce()
	}
}

// release takes addresses out of the fence. If that fails, the node does not give them up.
func (s *Speaker) release(ctx context.Context, drop []netip.Addr) error {
	err := s.fence.Hold(ctx, nil, drop)
	if err != nil {
		s.cfg.Log.Warn("cannot give up addresses", "err", err)
	}
	return err
}

// apply does what the member says: first what leaves, then what enters, then the grant.
func (s *Speaker) apply(ctx context.Context) {
	c := s.member.Take()
	if len(c.Add)+len(c.Drop) > 0 {
		s.formers.leave(c.Drop)
		s.formers.enter(c.Add)
		s.former()
		if err := s.fence.Hold(ctx, c.Add, c.Drop); err != nil {
			s.mend(ctx, err)
		}
		s.cfg.Metrics.takeovers.Add(float64(len(c.Add)))
		s.cfg.Metrics.losses.Add(float64(len(c.Drop)))
	}
	if c.Confirm && !s.broken {
		if err := s.fence.Confirm(c.Slot); err == nil { // else a Ticket finds out
			s.deadline.Store(int64(s.member.Deadline()))
			s.cfg.Metrics.grants.Inc()
		}
	}
	if len(c.Add)+len(c.Drop) > 0 {
		s.announce()
	}
}

// announce tells the announcer what the node holds.
func (s *Speaker) announce() {
	addrs := map[netip.Addr][]string{}
	assigned := map[api.Name]Assignment{}
	for a, d := range s.decisions {
		if !s.member.Granted(a) {
			continue
		}
		c, _ := d.Candidate(s.cfg.Node)
		if s.nowhere(a, c.Interfaces) {
			continue
		}
		if at, ok := s.unannounced[a]; ok {
			if time.Since(at) < freshFor || s.probing[a] {
				s.probe(a, c.Interfaces)
				continue
			}
			delete(s.unannounced, a)
		}
		addrs[a] = c.Interfaces
	}
	s.arp.Set(addrs)
	for a := range addrs {
		on := s.arp.On(a)
		for _, name := range s.decisions[a].Services {
			x := assigned[name]
			x.Addrs = append(x.Addrs, a)
			for _, i := range on {
				if !slices.Contains(x.Interfaces, i) {
					x.Interfaces = append(x.Interfaces, i)
				}
			}
			assigned[name] = x
		}
	}
	for _, x := range assigned {
		slices.SortFunc(x.Addrs, netip.Addr.Compare)
		slices.Sort(x.Interfaces)
	}
	s.cfg.Metrics.set(assigned)
	s.cfg.Assigned(assigned)
}

// leave gives everything up, so that others need not wait.
func (s *Speaker) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s.arp.Set(nil)
	s.formers.forget()
	s.former()
	if err := s.release(ctx, s.member.Claimed()); err == nil {
		s.member.Claim(nil)
	}
	s.member.Leave()
	for range goodbyes {
		s.sent(s.member.Beat(s.now()))
	}
	s.cfg.Assigned(nil)
	s.returnVote(ctx)
	return nil
}
