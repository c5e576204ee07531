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
	"github.com/fairway-net/fairway/internal/ipc/rib"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp/bfd"
)

// A Source is what a Speaker reads from the API server.
type Source interface {
	announce.Feed
	// BGP returns what decides but for Node and Unserved.
	BGP() announce.BGPInput
}

// Health asks the node's proxy what the kernel serves. Its methods may be called by any goroutine.
type Health interface {
	// Set says which ports are asked, at an address of the node.
	Set(addr netip.Addr, ports map[uint16]bool)
	Served(port uint16) bool // the last answer
	Changed() <-chan struct{}
}

// Config says how a Speaker works. All fields but ForwardingReady, Sessions and RIB are required.
type Config struct {
	Log    *slog.Logger
	Node   string // we run on
	Source Source
	Health Health
	// ProxyPort is where the node's proxy says that it has programmed the kernel; 0: it is not
	// asked.
	ProxyPort uint16
	// ReflectorPort is where route reflectors listen (TCP); 0: there are none.
	ReflectorPort uint16
	// ForwardingReady is closed when the node's kernel can pass on packets of connections that routers lead here and that other nodes know;
	// so long, but not for ever, nothing is announced. Nil: at once.
	ForwardingReady <-chan struct{}
	// Report is called with what BGPPeers ask for that is not done, after each decision.
	Report func([]announce.PeerProblem)
	// Announced is called with what is to be announced of each Service, after each decision.
	Announced func(map[api.Name]Announcement)
	// Sessions is called with how each session is, after each decision and when one changes; empty: there is none, or
	// no more. Nil: nobody asks.
	Sessions func([]announce.Standing)
	Metrics  *Metrics
	// RIB is where the node's agent says which podCIDRs to announce, and is told what routers do. Nil:
	// the pod network needs no routers.
	RIB RIB
}

// A RIB is a rib.Dir or a rib.Memory.
type RIB interface {
	PodCIDRs() ([]netip.Prefix, error)
	Asked() (bool, error)
	Received() ([]rib.Route, error)
	SetReceived([]rib.Route) error
	Watch(ctx context.Context, changed func(), problem func(error))
}

// missingVRFs says which sessions' VRFs the node lacks.
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

// An Announcement is what routers are to be told of a Service, whether their sessions are up or not.
type Announcement struct {
	Peers []string     // the BGPPeers, sorted
	Addrs []netip.Addr // sorted; one may be announced to some of them only
}

const (
	// retryPause is the time to the next try after an error.
	retryPause = 5 * time.Second
	// shunPause is how long a router is left alone that sent too much, or is not the wanted one.
	shunPause = 5 * time.Minute
	// forwardingTimeout is how long a node may take to know the others.
	forwardingTimeout = 10 * time.Second
	// drainTime is how long routers have to prefer other ways before ours are taken back.
	drainTime = time.Second
)

// Reasons why a Service is not announced yet.
const (
	notProgrammed = "the node's proxy has not said yet that it has programmed the kernel"
	notServed     = "the node's proxy says that it does not serve the Service (healthCheckNodePort)"
)

// A Speaker is one node's. Run runs it once.
type Speaker struct {
	cfg             Config
	wake            chan struct{}
	liveness        *liveness
	neighbours      *neighbours
	programmed      bool // the proxy has said once that the kernel has its rules: they outlive it
	started         bool // sessions have been opened: others than the first are no restart
	lastPodCIDRs    []netip.Prefix
	receivedChanged chan struct{}

	mu        sync.Mutex
	sessions  map[string]*session
	reflector *reflector // nil: this node is none
	notReady  string     // what keeps the last decision from being what routers are to know; empty: nothing

	reflects atomic.Bool // there is a reflector: s.mu is held while GoBGP is asked, which calls heardOf
	last     announce.BGPDecision
}

// New returns a Speaker.
func New(cfg Config) (*Speaker, error) {
	if cfg.RIB == nil {
		cfg.RIB = rib.Dir("")
	}
	if cfg.Sessions == nil {
		cfg.Sessions = func([]announce.Standing) {}
	}
	s := &Speaker{cfg: cfg, wake: make(chan struct{}, 1), receivedChanged: make(chan struct{}, 1), sessions: map[string]*session{}, notReady: "the objects that decide have not been read yet"}
	s.neighbours = &neighbours{log: cfg.Log, notify: s.notify, byDevice: map[string]*neighbour{}}
	s.liveness = &liveness{log: cfg.Log, notify: s.notify, lost: map[bfd.Config]string{}}
	var err error
	if s.liveness.watch, err = bfd.New(s.liveness.changed); err != nil {
		return nil, err
	}
	cfg.Metrics.speaker.Store(s)
	return s, nil
}

// Run announces until ctx ends, which is no error, and takes back then what it announced.
func (s *Speaker) Run(ctx context.Context) error {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx)) // BFD ends after BGP: else it would be a failure
	ended := make(chan error, 1)
	go func() { ended <- s.liveness.watch.Run(watching) }()
	var pods sync.WaitGroup
	if s.cfg.RIB != rib.Dir("") {
		pods.Go(func() { s.publishReceived(ctx) })
		pods.Go(func() {
			s.cfg.RIB.Watch(ctx, s.sessionChanged, func(err error) { s.cfg.Log.Warn("changes of the podCIDRs are found late", "err", err) })
		})
	}
	s.loop(ctx)
	pods.Wait()
	stop()
	s.neighbours.done.Wait()
	return <-ended
}

// loop makes things so until ctx ends.
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
		case <-timer.C:
		}
		if next := s.reconcile(ctx); next > 0 {
			timer.Reset(next)
		}
	}
}

// awaitForwarding waits until connections of other nodes that come here go on: they come with the first announcement.
func (s *Speaker) awaitForwarding(ctx context.Context) {
	if s.cfg.ForwardingReady == nil {
		return
	}
	select {
	case <-ctx.Done():
	case <-s.cfg.ForwardingReady:
	case <-time.After(forwardingTimeout):
		s.cfg.Log.Warn("announces to routers without knowing the other nodes: connections that routers lead here from those end [do UDP packets of the speakers' port reach the voters?]", "after", forwardingTimeout)
	}
}

// notify makes the loop look again.
func (s *Speaker) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sessionChanged is called when a session's state changes.
func (s *Speaker) sessionChanged() {
	s.notify()
	s.signalReceived()
}

// reconcile makes sessions and routes what the objects say. It returns when to try again; 0: when
// something changes.
func (s *Speaker) reconcile(ctx context.Context) (next time.Duration) {
	in := s.cfg.Source.BGP()
	in.Node, in.Unserved, in.PodCIDRs, in.Neighbour, in.OnLink = s.cfg.Node, s.unserved, s.podCIDRs(), s.neighbours.router, onLinks()
	in.ReflectorPort = s.cfg.ReflectorPort
	s.neighbours.set(ctx, announce.Interfaces(in))
	asked := s.watchHealth(in)
	d := announce.DecideBGP(in)
	d.Problems = append(append(d.Problems, s.liveness.problems(d.Sessions)...), missingVRFs(d.Sessions)...)
	s.report(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.notReady = d, s.missingInput(in, asked)
	s.closeOthers(d.Sessions)
	s.liveness.set(d.Sessions, d.Reflector)
	next = s.reflect(d.Reflector)
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
	s.signalReceived() // a session may be there no more
	return next
}

// standings says how each session is, sorted by peer. s.mu is held.
func (s *Speaker) standings() []announce.Standing {
	all := make([]announce.Standing, 0, len(s.sessions))
	for _, peer := range slices.Sorted(maps.Keys(s.sessions)) {
		all = append(all, s.sessions[peer].standing(s.cfg.Node))
	}
	return all
}

// intended returns what is announced of each Service. s.mu is held.
func (s *Speaker) intended(services []*announce.Service) map[api.Name]Announcement {
	addrs := make(map[api.Name][]netip.Addr, len(services))
	for _, svc := range services {
		addrs[svc.Name] = svc.Addrs
	}
	all := map[api.Name]Announcement{}
	for _, peer := range slices.Sorted(maps.Keys(s.sessions)) {
		for _, r := range s.sessions[peer].advertised {
			for _, name := range r.Services {
				one := all[name]
				if n := len(one.Peers); n == 0 || one.Peers[n-1] != peer {
					one.Peers = append(one.Peers, peer)
				}
				for _, a := range addrs[name] {
					if i, known := slices.BinarySearchFunc(one.Addrs, a, netip.Addr.Compare); !known && r.Prefix.Contains(a) {
						one.Addrs = slices.Insert(one.Addrs, i, a)
					}
				}
				all[name] = one
			}
		}
	}
	return all
}

// closeOthers ends the sessions that must not be, or not so. Those that go with a configuration
// are told anew at once; the routes of one that changes are kept if graceful restart allows it.
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

// session opens a session if it is not open and makes its routes those that it must have.
func (s *Speaker) session(want announce.Session) (next time.Duration) {
	have := s.sessions[want.Peer]
	if have == nil {
		var err error
		if have, err = openSession(s.cfg.Log, want.SessionConfig, want.GracefulRestart && !s.started, s.sessionChanged, s.routesChanged); err != nil {
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

func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// watchHealth lets the proxy be asked about what decides here, at these ports.
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

// unserved says why the kernel does not hold a Service's rules.
func (s *Speaker) unserved(svc *announce.Service) string {
	switch {
	case !s.programmed:
		return notProgrammed
	case svc.Local && svc.HealthCheckNodePort != 0 && !s.cfg.Health.Served(svc.HealthCheckNodePort):
		return notServed
	}
	return ""
}

// report says what is wrong with BGPPeers, and logs what has become so since the last decision.
func (s *Speaker) report(d announce.BGPDecision) {
	s.cfg.Report(d.Problems)
	for _, p := range d.Problems {
		if !slices.Contains(s.last.Problems, p) {
			s.cfg.Log.Warn("a BGPPeer cannot be held as it asks", "peer", p.Peer, "session", !p.NoSession, "reason", p.Reason)
		}
	}
}

// shutdown takes everything back: first routers are asked to prefer other nodes.
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
		<-time.After(drainTime) // nothing says that a router has done it
	}
	for name, have := range s.sessions {
		have.close(have.config.GracefulRestart)
		delete(s.sessions, name)
	}
	if s.reflector != nil {
		s.reflector.stop()
	}
}
