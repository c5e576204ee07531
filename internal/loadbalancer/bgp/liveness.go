package bgp

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp/bfd"
)

// A liveness finds routers that are gone by BFD. A session does not wait for BFD to come up: a router without BFD is not
// watched.
type liveness struct {
	log    *slog.Logger
	watch  *bfd.Watch
	notify func()

	mu   sync.Mutex
	want []bfd.Config
	lost map[bfd.Config]string // routers that went down since the last takeLost, with the reason
}

// watched returns the BFD configuration of a session; false: it has none.
func watched(c announce.SessionConfig) (w bfd.Config, ok bool) {
	return bfd.Config{
		Peer: c.Address.Addr(), Source: c.Source, Receive: c.BFD.Receive, Transmit: c.BFD.Transmit, Multiplier: c.BFD.Multiplier,
		Passive: c.BFD.Passive, MinTTL: c.BFD.MinTTL, MultiHop: c.MultiHop || c.Internal() && !onLink(c.Address.Addr()),
	}, c.BFD != announce.BFD{}
}

// onLink reports whether an address is on one of the node's networks. Routers of the node's own AS may be farther away,
// and need the multi-hop form of BFD (RFC 5883).
func onLink(a netip.Addr) bool {
	return onLinks()(a)
}

// onLinks returns onLink for many addresses. It reads the node's networks once.
func onLinks() func(netip.Addr) bool {
	read := sync.OnceValues(netns.Addrs)
	return func(a netip.Addr) bool {
		if a.IsLinkLocalUnicast() {
			return true
		}
		all, err := read()
		return err != nil || slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
	}
}

// set replaces the watched routers: those of the sessions, and the clients of the route reflector.
func (l *liveness) set(all []announce.Session, reflector *announce.Reflector) {
	var want []bfd.Config
	add := func(c announce.SessionConfig) {
		if w, ok := watched(c); ok {
			want = append(want, w)
		}
	}
	for _, s := range all {
		add(s.SessionConfig)
	}
	if reflector != nil {
		for _, c := range reflector.Clients {
			add(c.SessionConfig)
		}
	}
	l.watch.Set(want)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.want = want
	before := l.lost
	l.lost = map[bfd.Config]string{}
	for c, reason := range before {
		l.note(c, reason)
	}
}

// note records a lost router, also if its session has another BFD configuration now. l.mu is held.
func (l *liveness) note(c bfd.Config, reason string) {
	known := slices.Contains(l.want, c)
	for _, w := range l.want {
		if w == c || !known && w.Fixed() == c.Fixed() {
			l.lost[w] = reason
		}
	}
}

// problems returns the routers that cannot be watched.
func (l *liveness) problems(all []announce.Session) (problems []announce.PeerProblem) {
	for _, s := range all {
		w, _ := watched(s.SessionConfig)
		if now, ok := l.watch.Status(w); ok && now.Problem != "" {
			problems = append(problems, announce.PeerProblem{Peer: s.Peer, Reason: "bfdProfile: " + now.Problem})
		}
	}
	return problems
}

// changed handles a Change of the Watch.
func (l *liveness) changed(c bfd.Change) {
	log := l.log.With("address", c.Config.Peer)
	switch {
	case c.Problem:
		l.notify() // the next decision reports the problem
		return
	case c.Up:
		log.Info("BFD is up")
		return
	case c.Admin:
		log.Info("BFD is down", "reason", c.Reason) // the BGP session need not end (RFC 5882, 4.1)
		return
	}
	log.Warn("BFD is down", "reason", c.Reason)
	l.mu.Lock()
	l.note(c.Config, c.Reason)
	l.mu.Unlock()
	l.notify()
}

// takeLost reports once that the router of a session was lost.
func (l *liveness) takeLost(c announce.SessionConfig) (reason string, lost bool) {
	w, ok := watched(c)
	if !ok {
		return "", false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	reason, lost = l.lost[w]
	delete(l.lost, w)
	return reason, lost
}
