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

// A liveness knows by BFD which routers are gone. A session does not wait for BFD to come up: a
// router without it is one that is not watched.
type liveness struct {
	log    *slog.Logger
	watch  *bfd.Watch
	notify func()

	mu   sync.Mutex
	want []bfd.Config
	lost map[bfd.Config]string // why, of those that went down since the last look
}

// watched is the router of a session as BFD knows it; false: it is not watched.
func watched(c announce.SessionConfig) (w bfd.Config, ok bool) {
	return bfd.Config{
		Peer: c.Address.Addr(), Source: c.Source, Receive: c.BFD.Receive, Transmit: c.BFD.Transmit, Multiplier: c.BFD.Multiplier,
		Passive: c.BFD.Passive, MinTTL: c.BFD.MinTTL, MultiHop: c.MultiHop || c.Internal() && !onLink(c.Address.Addr()),
	}, c.BFD != announce.BFD{}
}

// onLink reports whether an address is of one of the node's networks. Routers of the node's own AS
// need not be: BFD must know, as there are two kinds of it (RFC 5881, RFC 5883).
func onLink(a netip.Addr) bool {
	return onLinks()(a)
}

// onLinks is onLink for many addresses: the node's networks are read with the first one.
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

// set says which sessions there are, and for which nodes this one is a route reflector.
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
	was := l.lost
	l.lost = map[bfd.Config]string{}
	for c, reason := range was {
		l.note(c, reason)
	}
}

// note keeps that a router was lost, for who watches it now, perhaps in another way than then. l.mu is held.
func (l *liveness) note(c bfd.Config, reason string) {
	known := slices.Contains(l.want, c)
	for _, w := range l.want {
		if w == c || !known && w.Way() == c.Way() {
			l.lost[w] = reason
		}
	}
}

// problems says which routers cannot be watched.
func (l *liveness) problems(all []announce.Session) (problems []announce.PeerProblem) {
	for _, s := range all {
		w, _ := watched(s.SessionConfig)
		if now, ok := l.watch.Status(w); ok && now.Problem != "" {
			problems = append(problems, announce.PeerProblem{Peer: s.Peer, Reason: "bfdProfile: " + now.Problem})
		}
	}
	return problems
}

// changed is called by the Watch.
func (l *liveness) changed(c bfd.Change) {
	log := l.log.With("address", c.Config.Peer)
	switch {
	case c.Problem:
		l.notify() // it is reported
		return
	case c.Up:
		log.Info("BFD is up")
		return
	case c.Admin:
		log.Info("BFD is down", "reason", c.Reason) // the session ends by itself, if it does (RFC 5882, 4.1)
		return
	}
	log.Warn("BFD is down", "reason", c.Reason)
	l.mu.Lock()
	l.note(c.Config, c.Reason)
	l.mu.Unlock()
	l.notify()
}

// takeLost reports, once, whether the router of a session was lost.
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
