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
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
)

// A Source is a speaker's view of the API server. Several goroutines may call it.
type Source interface {
	announce.Feed
	Input() announce.Input
	Voters() election.Voters
	SetVoters(context.Context, election.Voters) error
}

// Config configures a Speaker. All fields are required, except Lease, Owners, Granted, Refused, Excluded and Stateless.
type Config struct {
	Log    *slog.Logger
	Node   string // this node's name
	Key    []byte // the secret of all speakers
	Port   uint16 // UDP, for heartbeats
	Source Source
	Lease  Lease // the third vote of two nodes; nil: there is none
	// Assigned is called with the addresses and interfaces that this node announces for each Service, when they change.
	Assigned func(map[api.Name]Assignment)
	// Dead is called at every heartbeat that hears a majority, with the nodes that the majority declares dead, sorted.
	Dead func(nodes []string)
	// Owners is called when they change with the nodes that announce the addresses of Services with Egress. An empty
	// name says that no node announces the address. Owners must not wait.
	Owners func(map[netip.Addr]string)
	// Granted is called when the voters begin or cease to grant this node its addresses. It must not wait.
	Granted func(announce.Standing)
	// Refused is called when they change with the addresses that this node should announce and refuses, sorted. It must
	// not wait.
	Refused func([]announce.Standing)
	// Event tells the owner of a Service about a problem.
	Event   func(api.Name, api.Problem)
	Metrics *Metrics
	// Excluded is called at every heartbeat and returns why another node should have this node's addresses; empty: no
	// reason. If all nodes are excluded, one of them has the addresses anyway.
	Excluded func() string
	// Stateless says that the next owner of an address can carry open connections on by itself, so that it does not
	// wait for a previous owner that is dead.
	Stateless bool
}

const (
	// ticksPerBeat is how often the loop may ask the voters in the time of one heartbeat. With fence.Slots slots, no
	// slot is used twice while a grant lasts.
	ticksPerBeat = 4
	// goodbyes is how often a speaker that ends says so, because packets get lost. Other nodes declare a node dead that
	// falls silent without a goodbye.
	goodbyes = 3
	// maxTasks bounds the goroutines for probes.
	maxTasks = 64
	// maxIdle is how long the loop may be silent and still count as healthy. A Source may need that long at the start.
	maxIdle = 2 * time.Minute
	// conflictPause is the shortest time between two conflicts in the log; metrics count all of them.
	conflictPause = time.Second
)

// An Assignment is this node's part in announcing a Service.
type Assignment struct {
	Addrs      []netip.Addr
	Interfaces []string
}

// A Speaker announces addresses for one node. Run may be called once.
type Speaker struct {
	cfg    Config
	start  time.Time // zero of the election's clock
	member *election.Member
	fence  *fence.Fence
	arp    *arp.Responder
	net    *transport
	health *Health
	tasks  errgroup.Group // probes

	// Other goroutines send these to the loop.
	readings   chan reading
	interfaces chan []arp.Interface

	// The loop's state, each with a file of its own.
	decisions    map[netip.Addr]*announce.Decision // of the last reading
	nodes        []string                          // sorted
	addrs        map[string][]netip.Addr           // of the nodes
	leavingSince map[netip.Addr]time.Time          // addresses of other nodes that this node still holds
	owners       owners
	forwarding   forwarding
	probes       probes
	links        links
	refusals     refusals
	back         holdBack
	voting       voting
	lease        leaseVote
	grant        grantState

	excluded    string // the reason in the log
	tooMany     bool   // this node owns more addresses than it can announce
	fenceBroken bool   // the kernel's fence differs from the member's state
	beatSoon    bool   // the next tick is a heartbeat

	alive        atomic.Int64 // when the loop last ran, by the election's clock
	nextConflict atomic.Int64 // when the log may name a conflict again, by the election's clock
}

// New returns a Speaker.
func New(cfg Config) *Speaker {
	s := &Speaker{
		cfg: cfg, start: time.Now(), health: NewHealth(), readings: make(chan reading), interfaces: make(chan []arp.Interface, 1),
		leavingSince: map[netip.Addr]time.Time{}, forwarding: newForwarding(cfg.Log), probes: newProbes(), refusals: newRefusals(),
	}
	s.tasks.SetLimit(maxTasks)
	s.arp = arp.New(arp.Config{Log: cfg.Log, Allowed: s.allowed, Conflict: s.conflict, Count: cfg.Metrics.frame, Interfaces: s.setInterfaces})
	return s
}

// Healthy returns an error if the speaker's loop has not run for a while.
func (s *Speaker) Healthy() error {
	if idle := s.now() - time.Duration(s.alive.Load()); idle > maxIdle {
		return fmt.Errorf("the speaker's loop has not run for %v", idle.Round(time.Second))
	}
	return nil
}

// now returns the time by the election's clock.
func (s *Speaker) now() time.Duration { return time.Since(s.start) }

// conflict logs that another machine claims an address. The responder calls it with its lock held. The log has a pace,
// because a machine may claim thousands of addresses again and again.
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

// setInterfaces hands the node's interfaces to the loop. The responder calls it when they change.
func (s *Speaker) setInterfaces(all []arp.Interface) {
	select {
	case <-s.interfaces: // replace an older list
	default:
	}
	s.interfaces <- all
}

// Run announces until ctx ends, and returns nil then. The caller has fence.Lock. Run takes its port before it opens the
// fence, because a speaker of an older version, which has no lock, may have the port and the fence.
func (s *Speaker) Run(ctx context.Context) error {
	var err error
	if s.net, err = listen(ctx, s.cfg.Port, s.cfg.Key, s.cfg.Metrics.refused.Inc); err != nil {
		return err
	}
	defer s.net.conn.Close()
	if s.fence, err = fence.Open(ctx, election.DefaultTiming.Grant); err != nil {
		return err
	}
	defer s.fence.Close()
	if err := s.fence.ForwardingError(); err != nil {
		s.cfg.Log.Warn("packets of open connections cannot be forwarded to the previous owner of an address: connections end when it moves", "err", err)
	}
	s.member = election.New(election.Config{Self: s.cfg.Node, Key: s.cfg.Key, Start: s.now(), Timing: election.DefaultTiming,
		Random: func() uint64 { return rand.Uint64() | 1 }})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(s.net.run)
	g.Go(func() error { return s.arp.Run(ctx) })
	g.Go(func() error { return s.health.Run(ctx) })
	g.Go(func() error { return s.follow(ctx) })
	g.Go(func() error { return s.forwarding.neighbours.run(ctx) })
	g.Go(func() error { return s.renewLease(ctx) })
	g.Go(func() error {
		defer s.net.conn.Close()
		return s.loop(ctx)
	})
	defer s.voting.write.Wait()
	return errors.Join(g.Wait(), s.tasks.Wait())
}

// loop is the only goroutine that calls the member and the fence.
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
			s.receive(data)
		case <-wake.C:
			s.send(s.member.Wake(s.now()))
		case <-tick.C:
			if ticks++; ticks%ticksPerBeat == 0 || s.beatSoon {
				s.beatSoon = false
				s.beat(ctx)
			}
		case r := <-s.readings:
			s.take(ctx, r, false)
		case <-s.health.Changed():
			s.beatSoon = true
		case all := <-s.interfaces:
			s.takeInterfaces(ctx, all)
		case macs := <-s.forwarding.neighbours.read:
			s.takeNeighbours(ctx, macs)
		case r := <-s.probes.results:
			s.takeProbe(r)
		}
		s.receiveWaiting()
		s.apply(ctx)
		s.publishOwners()
		s.alive.Store(int64(s.now()))
	}
}

// receive hands a message to the member, and sends its answers.
func (s *Speaker) receive(data []byte) {
	packets, err := s.member.Receive(s.now(), data)
	if err != nil {
		s.cfg.Metrics.refused.Inc()
	}
	s.send(packets)
}

// receiveWaiting receives the messages that have come while the loop did something else, for example wrote the addresses
// of a thousand new Services. Otherwise each of these writes would let the queue grow, and a voter would answer too late.
func (s *Speaker) receiveWaiting() {
	for range len(s.net.inbox) {
		s.receive(<-s.net.inbox)
	}
}

// send sends packets of the election, and counts them.
func (s *Speaker) send(packets []election.Packet) {
	n := s.net.send(packets)
	s.cfg.Metrics.messages.Add(float64(len(packets)))
	s.cfg.Metrics.bytes.Add(float64(n))
}

// beat tells the member which addresses this node wants, and asks the voters for them.
func (s *Speaker) beat(ctx context.Context) {
	if s.fenceBroken {
		s.reloadFence(ctx, nil)
	}
	dead, ok := s.member.Dead()
	if ok {
		s.cfg.Dead(slices.Sorted(maps.Keys(dead)))
	}
	s.reportGrant()
	s.back.note(ok, time.Now())
	s.useLease()
	s.exclude()
	s.claim(ctx, dead)
	s.reportRefusals()
	switch err := s.fence.Ticket(ctx, s.member.NextSlot()); {
	case errors.Is(err, fence.ErrGone):
		s.reloadFence(ctx, err)
		return
	case err != nil:
		return // the slot is in use: too soon; or the kernel does not answer
	}
	s.send(s.member.Beat(s.now()))
	s.writeVoters(ctx)
}

// reloadFence loads the fence again, with the addresses that the member holds. Until that succeeds, no request is
// confirmed.
func (s *Speaker) reloadFence(ctx context.Context, reason error) {
	if reason != nil {
		s.cfg.Log.Warn("the fence is loaded again", "err", reason)
	}
	s.cfg.Metrics.fenceLoads.Inc()
	granted := slices.DeleteFunc(slices.Clone(s.member.Claimed()), func(a netip.Addr) bool { return !s.member.Granted(a) })
	err := s.fence.Reload(ctx, granted)
	if s.fenceBroken = err != nil; s.fenceBroken {
		s.cfg.Log.Error("this node announces nothing: the fence cannot be loaded", "err", err)
	}
}

// claim tells the member which addresses this node wants. dead are the nodes that a majority declares dead.
func (s *Speaker) claim(ctx context.Context, dead map[string]bool) {
	out, ok := s.member.Out()
	if !ok {
		// Nothing is known. The node keeps its claims, but not for long: voters that hear this node, and are not heard
		// by it, would grant the addresses to no other node.
		if s.back.isolated(time.Now()) {
			s.want(ctx, nil)
		}
		return
	}
	v := claimView{
		self: s.cfg.Node, decisions: s.decisions, out: out, dead: dead, granted: s.member.Granted, contested: s.member.Contested(),
		served: s.health.Served, leavingSince: s.leavingSince, now: time.Now(), forwarding: &s.forwarding, unserved: map[netip.Addr]uint16{},
	}
	want, ownersChanged := v.claims()
	s.refusals.keep(s.cfg.Node, want, v.unserved, v.now)
	s.updateForwarding(ctx, v, ownersChanged)
	s.owners.set(v)
	if many := len(want) > election.MaxAddrs; many != s.tooMany {
		if s.tooMany = many; many {
			s.cfg.Log.Error("this node owns more addresses than it can announce: no node announces the last ones [let fewer Services have an address, or more nodes announce them]", "addresses", len(want), "most", election.MaxAddrs)
		}
	}
	s.want(ctx, slices.DeleteFunc(want, func(a netip.Addr) bool { return time.Now().Before(s.probes.taken[a]) }))
}

// want tells the member which addresses to ask for. Addresses that the node gives up leave the fence first.
func (s *Speaker) want(ctx context.Context, want []netip.Addr) {
	wanted := make(map[netip.Addr]bool, len(want)) // a map, because each heartbeat does this for up to 10,000 addresses
	for _, a := range want {
		wanted[a] = true
	}
	drop := slices.DeleteFunc(slices.Clone(s.member.Claimed()), func(a netip.Addr) bool { return wanted[a] })
	if len(drop) > 0 {
		s.forwarding.release(drop)
		s.setForwarding()
		if err := s.release(ctx, drop); err != nil {
			return // the node still claims them
		}
	}
	s.member.Claim(want)
	if len(drop) > 0 {
		s.announce()
	}
}

// release takes addresses out of the fence. After an error the node must not give them up.
func (s *Speaker) release(ctx context.Context, drop []netip.Addr) error {
	err := s.fence.Hold(ctx, nil, drop)
	if err != nil {
		s.cfg.Log.Warn("cannot give up addresses", "err", err)
	}
	return err
}

// apply carries out the member's changes: first the addresses that leave, then the new ones, then the grant.
func (s *Speaker) apply(ctx context.Context) {
	c := s.member.Take()
	changed := len(c.Add)+len(c.Drop) > 0
	if changed {
		s.forwarding.release(c.Drop)
		s.forwarding.hold(c.Add)
		s.setForwarding()
		if err := s.fence.Hold(ctx, c.Add, c.Drop); err != nil {
			s.reloadFence(ctx, err)
		}
		s.cfg.Metrics.takeovers.Add(float64(len(c.Add)))
		s.cfg.Metrics.losses.Add(float64(len(c.Drop)))
	}
	if c.Confirm && !s.fenceBroken {
		if err := s.fence.Confirm(c.Slot); err == nil { // the next Ticket reports an error again
			s.grant.deadline.Store(int64(s.member.Deadline()))
			s.cfg.Metrics.grants.Inc()
		}
	}
	if changed {
		s.announce()
	}
}

// announce tells the responder which addresses the node holds, and the caller which Services these addresses belong to.
func (s *Speaker) announce() {
	addrs := map[netip.Addr][]string{}
	assigned := map[api.Name]Assignment{}
	for a, d := range s.decisions {
		if !s.member.Granted(a) {
			continue
		}
		c, _ := d.Candidate(s.cfg.Node)
		if s.nowhere(a, c.Interfaces) || s.mustProbe(a, c.Interfaces) {
			continue
		}
		s.refusals.remove(a)
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

// leave gives up all addresses at the end, so that other nodes need not wait.
func (s *Speaker) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	s.arp.Set(nil)
	s.forwarding.forget()
	s.setForwarding()
	if err := s.release(ctx, s.member.Claimed()); err == nil {
		s.member.Claim(nil)
	}
	s.member.Leave()
	for range goodbyes {
		s.send(s.member.Beat(s.now()))
	}
	s.cfg.Assigned(nil)
	s.returnLease(ctx)
	return nil
}
