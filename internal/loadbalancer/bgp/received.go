package bgp

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
)

const (
	// staleTime is how long a Speaker keeps the routes that the process before it received, while the router's session
	// is not up yet.
	staleTime = 30 * time.Second
	// initialUpdateTime is how long a router may take to send its routes after its session is up.
	initialUpdateTime = 2 * time.Second
	// defaultPref is the LOCAL_PREF of a route that has none.
	defaultPref = 100
)

// podCIDRs returns the prefixes that the agent wants to announce. After an error it returns the last ones.
func (s *Speaker) podCIDRs() []netip.Prefix {
	all, err := s.cfg.RIB.PodCIDRs()
	if err != nil {
		s.cfg.Log.Error("cannot read the node's podCIDRs; they are announced as before", "err", err)
		return s.lastPodCIDRs
	}
	s.lastPodCIDRs = all
	return all
}

// publishReceived gives the routers' routes to the agent until ctx ends. Then they stay, and the next Speaker receives
// them again.
func (s *Speaker) publishReceived(ctx context.Context) {
	before, err := s.cfg.RIB.Received()
	if err != nil {
		s.cfg.Log.Warn("cannot read the last routes to pods; they return with the routers' sessions", "err", err)
	}
	began, wroteNone := time.Now(), false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.receivedChanged:
		case <-timer.C:
		}
		start := time.Now()
		asked, err := s.cfg.RIB.Asked()
		if err != nil {
			continue // podCIDRs logs the error
		}
		var all []podroutes.Route
		if asked {
			before = slices.DeleteFunc(before, func(r podroutes.Route) bool { return time.Since(began) > staleTime || s.initialUpdateDone(r.Router) })
			all = append(s.received(), before...)
			slices.SortFunc(all, compareRoutes)
			all = slices.Compact(all)
		}
		if ctx.Err() != nil {
			return
		}
		if asked || !wroteNone { // the agent does not ask: write an empty list once
			err = s.cfg.RIB.SetReceived(all)
			wroteNone = err == nil && !asked
		}
		if err != nil {
			s.cfg.Log.Error("cannot give the routers' routes to the agent, will try again", "err", err, "again", retryPause)
			timer.Reset(retryPause)
		} else if len(before) > 0 {
			timer.Reset(initialUpdateTime / 4)
		}
		fair.Rest(ctx, time.Since(start), nil) // each write starts a pass of the agent
	}
}

// routesChanged is called when a router has changed its routes. A route reflector passes them on.
func (s *Speaker) routesChanged() {
	s.signalReceived()
	if s.reflects.Load() {
		s.podRoutes.notify()
	}
}

// signalReceived makes publishReceived read the routes again.
func (s *Speaker) signalReceived() { s.receivedChanged.notify() }

func compareRoutes(a, b podroutes.Route) int {
	return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), a.NextHop.Compare(b.NextHop), a.Router.Compare(b.Router))
}

// initialUpdateDone reports whether a router has had the time to send all its routes. The zero Addr asks about all
// routers.
func (s *Speaker) initialUpdateDone(router netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := false
	for _, have := range s.sessions {
		if !router.IsValid() || have.config.Address.Addr() == router {
			since := have.upSince()
			if done = !since.IsZero() && time.Since(since) > initialUpdateTime; !done {
				return false
			}
		}
	}
	return done
}

// A receivedPath is a router's route to a prefix.
type receivedPath struct {
	podroutes.Route
	pref uint32   // higher is better
	hops int      // fewer are better, at equal pref
	path []uint32 // ASNs
}

// compare returns a positive number if o is better.
func (o receivedPath) compare(than receivedPath) int {
	return cmp.Or(cmp.Compare(o.pref, than.pref), cmp.Compare(than.hops, o.hops))
}

// received returns the best routes to each prefix: several ones if routers offer equal ones.
func (s *Speaker) received() []podroutes.Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := map[netip.Prefix][]receivedPath{}
	for _, have := range s.sessions {
		for _, o := range have.receivedPaths() {
			have := best[o.Prefix]
			switch {
			case len(have) == 0 || o.compare(have[0]) > 0:
				best[o.Prefix] = []receivedPath{o}
			case o.compare(have[0]) == 0:
				best[o.Prefix] = append(have, o)
			}
		}
	}
	all := []podroutes.Route{} // not nil, because the agent asks
	for _, offers := range best {
		for _, o := range offers {
			all = append(all, o.Route)
		}
	}
	return all
}

// receivedPaths returns the router's routes now, or from before its graceful restart.
func (s *session) receivedPaths() (all []receivedPath) {
	if s.upSince().IsZero() && !s.config.GracefulRestart {
		return nil
	}
	return receivedPathsOf(s.server, s.config, s.config.Address.Addr(), s.log)
}
