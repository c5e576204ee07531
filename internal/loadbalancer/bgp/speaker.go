package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp/bfd"
)

// A Source is a Speaker's view of the API server.
type Source interface {
	announce.Feed
	// BGP returns the input of the decision without this node's own fields, which reconcile sets.
	BGP() announce.BGPInput
}

// Health asks this node's proxy which Services the kernel serves. Its methods may be called by any goroutine.
type Health interface {
	// Set sets the ports to ask, at an address of the node.
	Set(addr netip.Addr, ports map[uint16]bool)
	// Served returns a port's last answer; false: no answer yet.
	Served(port uint16) bool
	// Changed returns a channel that receives when an answer has changed.
	Changed() <-chan struct{}
}

// Config configures a Speaker. All fields are required, except ForwardingReady, Sessions, Routers and RIB.
type Config struct {
	Log    *slog.Logger
	Node   string // this node's name
	Source Source
	Health Health
	// ProxyPort is the port at which the node's proxy tells that it has programmed the kernel; 0: do not ask.
	ProxyPort uint16
	// ReflectorPort is the TCP port of route reflectors; 0: there are none.
	ReflectorPort uint16
	// ForwardingReady is closed when the kernel can forward packets of other nodes' connections that routers lead to
	// this node. The Speaker announces nothing before, or for forwardingTimeout. Nil: it does not wait.
	ForwardingReady <-chan struct{}
	// Report is called after each decision with the requests of BGPPeers that cannot be met.
	Report func([]announce.PeerProblem)
	// Announced is called after each decision with the wanted announcement of each Service.
	Announced func(map[api.Name]Announcement)
	// Sessions is called after each decision and after each change with the state of all sessions. It may be nil.
	Sessions func([]announce.Standing)
	// Routers is called after each decision with the addresses and BGP ports of all routers. It may be nil.
	Routers func([]netip.AddrPort)
	Metrics *Metrics
	// RIB exchanges routes with the node's agent: podCIDRs to announce, and routes from routers. Nil: the pod network
	// needs no routers.
	RIB RIB
}

// A RIB exchanges routes with the agent: a podroutes.Dir or a podroutes.Memory.
type RIB interface {
	PodCIDRs() ([]netip.Prefix, error)
	Asked() (bool, error)
	Received() ([]podroutes.Route, error)
	SetReceived([]podroutes.Route) error
	Watch(ctx context.Context, changed func(), problem func(error))
}

// missingVRFs returns a problem for each session in a VRF that the node lacks.
func missingVRFs(all []announce.Session) (problems []announce.PeerProblem) {
	for _, c := range all {
		if c.VRF == "" {
			continue
		}
		if _, err := net.InterfaceByName(c.VRF); err != nil {
			problems = append(problems, announce.PeerProblem{Peer: c.Peer, NoSession: true, Reason: fmt.Sprintf("vrf: %s: %v", api.Cut(c.VRF, 100), err)})
		}
	}
	return problems
}

// An Announcement is the wanted announcement of a Service, whether sessions are up or not.
type Announcement struct {
	Peers []string     // the BGPPeers, sorted
	Addrs []netip.Addr // sorted; some may go to some of the Peers only
}

const (
	// retryPause is the pause after an error.
	retryPause = 5 * time.Second
	// shunPause is how long the Speaker has no session with a router that sent too many prefixes or is in the wrong AS.
	shunPause = 5 * time.Minute
	// forwardingTimeout is the longest wait for ForwardingReady.
	forwardingTimeout = 10 * time.Second
	// drainTime is how long routers have to prefer other routes before a route is withdrawn. A speaker that ends waits
	// for drainTime and at most closeTimeout: together less than terminationGracePeriodSeconds, 5 s, in
	// deploy/components/load-balancer/speaker.yaml. A longer drainTime needs a longer grace period there.
	drainTime = time.Second
)

// The reasons why a Service is not announced yet.
const (
	notProgrammed = "the node's proxy has not confirmed yet that it has programmed the kernel"
	notServed     = "the node's proxy says that it does not serve the Service (healthCheckNodePort)"
)

// A Speaker has the BGP sessions of one node. Run may be called once.
type Speaker struct {
	cfg             Config
	wake            notice // sessions, BFD or neighbours have changed
	podRoutes       notice // the podCIDRs have changed, this node's or those of a reflector's clients
	liveness        *liveness
	neighbours      *neighbours
	aggregates      *aggregates
	programmed      bool // the proxy has programmed the kernel once; the rules outlive the proxy
	started         bool // the first sessions are open; later sessions are no restart
	lastPodCIDRs    []netip.Prefix
	receivedChanged notice

	mu        sync.Mutex
	sessions  map[string]*session
	ledger    *ledger    // of what all sessions' routers send; guards itself
	reflector *reflector // nil: this node is no route reflector
	notReady  string     // why the last decision is not final; empty: it is

	reflects atomic.Bool // reflector is set; atomic, because GoBGP calls routesChanged while s.mu is held
	last     announce.BGPDecision
}

// New returns a Speaker.
func New(cfg Config) (*Speaker, error) {
	if cfg.RIB == nil {
		cfg.RIB = podroutes.Dir("")
	}
	if cfg.Sessions == nil {
		cfg.Sessions = func([]announce.Standing) {}
	}
	if cfg.Routers == nil {
		cfg.Routers = func([]netip.AddrPort) {}
	}
	s := &Speaker{cfg: cfg, wake: make(notice, 1), podRoutes: make(notice, 1), receivedChanged: make(notice, 1), sessions: map[string]*session{}, ledger: &ledger{of: map[sender]*account{}}, notReady: "the objects have not been read yet"}
	s.aggregates = newAggregates()
	s.neighbours = &neighbours{log: cfg.Log, notify: s.notify, byDevice: map[string]*neighbour{}}
	s.liveness = &liveness{log: cfg.Log, notify: s.notify, lost: map[bfd.Config]string{}}
	var err error
	if s.liveness.watch, err = bfd.New(s.liveness.changed); err != nil {
		return nil, err
	}
	cfg.Metrics.speaker.Store(s)
	return s, nil
}

// Run announces until ctx ends. Then it takes back its routes and returns nil.
func (s *Speaker) Run(ctx context.Context) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx)) // BFD ends after BGP, because routers take its end for a failure
	ended := make(chan error, 1)
	go func() { ended <- s.liveness.watch.Run(watching) }()
	var pods sync.WaitGroup
	if s.cfg.RIB != podroutes.Dir("") {
		pods.Go(func() { s.publishReceived(ctx) })
		pods.Go(func() {
			s.cfg.RIB.Watch(ctx, s.podCIDRsChanged, func(err error) { s.cfg.Log.Warn("changes of podCIDRs are found late", "err", err) })
		})
	}
	s.loop(ctx)
	pods.Wait()
	stop()
	s.neighbours.done.Wait()
	return <-ended
}

// loop reconciles after each change until ctx ends. It rests after each pass, because each change of a Node object starts
// a pass on every node. Changes of sessions and BFD do not wait.
func (s *Speaker) loop(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.cfg.Source.Synced():
	}
	s.awaitForwarding(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			s.shutdown()
			return
		case <-s.cfg.Source.Dirty():
		case <-s.cfg.Health.Changed():
		case <-s.wake:
		case <-s.podRoutes:
		case <-timer.C:
		}
		start := time.Now()
		if next := s.reconcile(ctx); next > 0 {
			timer.Reset(next)
		}
		if fair.Rest(ctx, time.Since(start), s.wake) {
			s.notify()
		}
	}
}

// awaitForwarding waits for ForwardingReady, because packets of other nodes' connections come with the first
// announcement.
func (s *Speaker) awaitForwarding(ctx context.Context) {
	if s.cfg.ForwardingReady == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-s.cfg.ForwardingReady:
	case <-time.After(forwardingTimeout):
		s.cfg.Log.Warn("the node announces to routers before it can forward packets to other nodes: connections end that routers move to this node [do UDP packets of the speakers' port reach the voters?]", "after", forwardingTimeout)
	}
}

// A notice receives a value when its subject may have changed.
type notice chan struct{}

func (n notice) notify() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// notify makes the loop reconcile at once.
func (s *Speaker) notify() { s.wake.notify() }

// podCIDRsChanged is called when the agent's podCIDRs, or its wish for the routers' routes, may have changed.
func (s *Speaker) podCIDRsChanged() {
	s.podRoutes.notify()
	s.signalReceived()
}

// sessionChanged is called when a session's state changes.
func (s *Speaker) sessionChanged() {
	s.notify()
	s.signalReceived()
}

// reconcile makes sessions and routes those of the objects. It returns the time until the next try; 0: the next change.
func (s *Speaker) reconcile(ctx context.Context) (next time.Duration) {
	in := s.cfg.Source.BGP()
	in.Node, in.Unserved, in.PodCIDRs, in.Neighbour, in.OnLink = s.cfg.Node, s.unserved, s.podCIDRs(), s.neighbours.router, onLinks()
	in.ReflectorPort = s.cfg.ReflectorPort
	s.neighbours.set(ctx, announce.Interfaces(in))
	asked := s.watchHealth(in)
	d := announce.DecideBGP(in)
	d.Problems = append(append(d.Problems, s.liveness.problems(d.Sessions)...), missingVRFs(d.Sessions)...)
	s.report(d)
	s.cfg.Routers(routersOf(d.Sessions))
	retry := s.dropUnassigned(ctx, d.Sessions)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.notReady = d, s.missingInput(in, asked)
	s.closeOthers(d.Sessions)
	s.liveness.set(d.Sessions, d.Reflector)
	next = sooner(retry, s.reflect(d.Reflector))
	for _, want := range d.Sessions {
		next = sooner(next, s.session(want))
		if reason, lost := s.liveness.takeLost(want.SessionConfig); lost && s.sessions[want.Peer] != nil {
			s.sessions[want.Peer].reset(reason)
		}
	}
	next = sooner(next, s.advertiseToClients())
	s.started = s.started || len(d.Sessions) > 0
	s.cfg.Announced(s.intended(in.Services))
	s.cfg.Sessions(s.standings())
	s.signalReceived() // a session may be gone
	return next
}

// routersOf returns the addresses and ports of the sessions' routers.
func routersOf(all []announce.Session) []netip.AddrPort {
	routers := make([]netip.AddrPort, 0, len(all))
	for _, session := range all {
		routers = append(routers, session.Address)
	}
	return routers
}

// dropUnassigned makes the kernel drop packets to addresses of the announced aggregates that no Service has. It returns the
// time until the next try; 0: the next change.
func (s *Speaker) dropUnassigned(ctx context.Context, sessions []announce.Session) (next time.Duration) {
	if err := s.aggregates.sync(ctx, aggregatesOf(sessions)); err != nil {
		s.cfg.Log.Warn("packets to addresses of an aggregate that no Service has may go round between this node and its router, will try again", "err", err, "again", retryPause)
		return retryPause
	}
	return 0
}

// standings returns the state of all sessions, sorted by peer. s.mu is held.
func (s *Speaker) standings() []announce.Standing {
	all := make([]announce.Standing, 0, len(s.sessions))
	for _, peer := range slices.Sorted(maps.Keys(s.sessions)) {
		all = append(all, s.sessions[peer].standing(s.cfg.Node))
	}
	return all
}

// intended returns the wanted announcement of each Service. s.mu is held.
func (s *Speaker) intended(services []*announce.Service) map[api.Name]Announcement {
	addrs := make(map[api.Name][]netip.Addr, len(services))
	for _, svc := range services {
		addrs[svc.Name] = svc.Addrs
	}
	all := map[api.Name]Announcement{}
	for _, peer := range slices.Sorted(maps.Keys(s.sessions)) {
		for _, r := range s.sessions[peer].advertised {
			for _, name := range r.Services {
				wanted := all[name]
				if n := len(wanted.Peers); n == 0 || wanted.Peers[n-1] != peer {
					wanted.Peers = append(wanted.Peers, peer)
				}
				for _, a := range addrs[name] {
					if i, known := slices.BinarySearchFunc(wanted.Addrs, a, netip.Addr.Compare); !known && r.Prefix.Contains(a) {
						wanted.Addrs = slices.Insert(wanted.Addrs, i, a)
					}
				}
				all[name] = wanted
			}
		}
	}
	return all
}

// closeOthers ends the sessions that are not wanted, or not with their configuration. reconcile opens a changed session
// again at once.
func (s *Speaker) closeOthers(all []announce.Session) {
	for name, have := range s.sessions {
		i := slices.IndexFunc(all, func(w announce.Session) bool { return w.Peer == name })
		_, _, shunnedAt := have.state()
		switch {
		case i >= 0 && have.becomes(all[i].SessionConfig) && (shunnedAt.IsZero() || time.Since(shunnedAt) < shunPause):
			continue
		case i < 0:
			have.log.Info("session ends")
		default:
			have.log.Info("session restarts")
		}
		have.close(false)
		delete(s.sessions, name)
	}
}

// session opens a session if needed, and sets its routes.
func (s *Speaker) session(want announce.Session) (next time.Duration) {
	have := s.sessions[want.Peer]
	if have == nil {
		var err error
		if have, err = openSession(s.cfg.Log, want.SessionConfig, want.GracefulRestart && !s.started, s.ledger, s.sessionChanged, s.routesChanged); err != nil {
			s.cfg.Log.Error("cannot start a session, will try again", "peer", want.Peer, "err", err, "again", retryPause)
			return retryPause
		}
		s.sessions[want.Peer] = have
	}
	have.bfd = want.BFD
	routes, next := have.withoutDrained(slices.Concat(want.Routes, s.reflectedPodCIDRs(want)))
	if err := have.setRoutes(routes); err != nil {
		have.log.Error("cannot change routes, will try again", "err", err, "again", retryPause)
		s.notReady = "routes cannot be changed: " + err.Error()
		return retryPause
	}
	if _, _, shunnedAt := have.state(); !shunnedAt.IsZero() {
		return max(time.Millisecond, shunPause-time.Since(shunnedAt))
	}
	return next
}

// sooner returns the shorter time; 0 stands for never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// watchHealth sets the ports at which the proxy is asked, and returns them.
func (s *Speaker) watchHealth(in announce.BGPInput) (ports map[uint16]bool) {
	ports = map[uint16]bool{}
	for _, svc := range in.Services {
		if svc.Local && svc.HealthCheckNodePort != 0 && in.Endpoints(svc.Name).Serving[s.cfg.Node] {
			ports[svc.HealthCheckNodePort] = true
		}
	}
	if s.programmed = s.programmed || s.cfg.ProxyPort == 0 || s.cfg.Health.Served(s.cfg.ProxyPort); !s.programmed {
		ports[s.cfg.ProxyPort] = true
	}
	for _, n := range in.Nodes {
		if n.Name == s.cfg.Node && len(n.Addrs) > 0 {
			s.cfg.Health.Set(n.Addrs[0], ports)
		}
	}
	return ports
}

// unserved returns why the kernel does not have a Service's rules; empty: it has.
func (s *Speaker) unserved(svc *announce.Service) string {
	switch {
	case !s.programmed:
		return notProgrammed
	case svc.Local && svc.HealthCheckNodePort != 0 && !s.cfg.Health.Served(svc.HealthCheckNodePort):
		return notServed
	}
	return ""
}

// report reports the problems of BGPPeers, and logs the new ones.
func (s *Speaker) report(d announce.BGPDecision) {
	s.cfg.Report(d.Problems)
	for _, p := range d.Problems {
		if !slices.Contains(s.last.Problems, p) {
			s.cfg.Log.Warn("a BGPPeer asks for something that is not possible", "peer", p.Peer, "session", !p.NoSession, "reason", p.Reason)
		}
	}
}

// shutdown asks routers to prefer other nodes, and then withdraws all routes.
func (s *Speaker) shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait := false
	for _, have := range s.sessions {
		if up, _, _ := have.state(); up && !have.config.GracefulRestart && len(have.advertised) > 0 {
			wait = have.drain() == nil || wait
		}
	}
	if wait {
		<-time.After(drainTime) // BGP has no answer that tells when a router is done
	}
	var closing sync.WaitGroup
	for _, have := range s.sessions {
		closing.Go(func() { have.close(have.config.GracefulRestart) })
	}
	closing.Wait()
	clear(s.sessions)
	if s.reflector != nil {
		s.reflector.stop()
	}
}
