package bgp

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/rib"
)

const (
	// staleTime is how long after its start a Speaker holds on to what the one before had received from
	// a router whose session is not up yet, and filling how long a session's first routes take.
	staleTime         = 30 * time.Second
	initialUpdateTime = 2 * time.Second
	// defaultPref is the LOCAL_PREF of routes without one.
	defaultPref = 100
)

// podCIDRs are what the agent wants announced. What cannot be read is as it was.
func (s *Speaker) podCIDRs() []netip.Prefix {
	all, err := s.cfg.RIB.PodCIDRs()
	if err != nil {
		s.cfg.Log.Error("cannot read the node's podCIDRs; they are announced as before", "err", err)
		return s.lastPodCIDRs
	}
	s.lastPodCIDRs = all
	return all
}

// publishReceived publishes to the agent what routers announce, until ctx ends. Then it stays as it is: the next
// Speaker receives it again.
func (s *Speaker) publishReceived(ctx context.Context) {
	before, err := s.cfg.RIB.Received()
	if err != nil {
		s.cfg.Log.Warn("cannot read the last routes to pods; they return with the routers' sessions", "err", err)
	}
	began, nothing := time.Now(), false // written is that there are none
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.receivedChanged:
		case <-timer.C:
		}
		asked, err := s.cfg.RIB.Asked()
		if err != nil {
			continue // podCIDRs says so
		}
		var all []rib.Route
		if asked {
			before = slices.DeleteFunc(before, func(r rib.Route) bool { return time.Since(began) > staleTime || s.initialUpdateDone(r.Router) })
			all = append(s.received(), before...)
			slices.SortFunc(all, compareRoutes)
			all = slices.Compact(all)
		}
		if ctx.Err() != nil {
			return
		}
		if asked || !nothing { // else no pod network of this node wants to know, and there is nothing
			err = s.cfg.RIB.SetReceived(all)
			nothing = err == nil && !asked
		}
		if err != nil {
			s.cfg.Log.Error("cannot tell the agent what routers announce, will try again", "err", err, "again", retryPause)
			timer.Reset(retryPause)
		} else if len(before) > 0 {
			timer.Reset(initialUpdateTime / 4)
		}
	}
}

// routesChanged is called when a router has announced something. A route reflector passes it on.
func (s *Speaker) routesChanged() {
	s.signalReceived()
	if s.reflects.Load() {
		s.notify()
	}
}

// signalReceived makes publishReceived read the sessions again.
func (s *Speaker) signalReceived() {
	select {
	case s.receivedChanged <- struct{}{}:
	default:
	}
}

func compareRoutes(a, b rib.Route) int {
	return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), a.NextHop.Compare(b.NextHop), a.Router.Compare(b.Router))
}

// initialUpdateDone reports whether a router has had the time to announce all its routes; of no valid router, whether
// all have.
func (s *Speaker) initialUpdateDone(router netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := false
	for _, have := range s.sessions {
		if !router.IsValid() || have.config.Address.Addr() == router {
			since := have.upSince()
			if is = !since.IsZero() && time.Since(since) > initialUpdateTime; !is {
				return false
			}
		}
	}
	return is
}

// A receivedPath is what one router announces of a prefix.
type receivedPath struct {
	rib.Route
	pref uint32 // higher is better
	hops int    // fewer are better, at equal pref
	path []uint32
}

func (o receivedPath) compare(than receivedPath) int {
	return cmp.Or(cmp.Compare(o.pref, than.pref), cmp.Compare(than.hops, o.hops))
}

// received returns the best offers for each prefix: those of several routers where they are equal.
func (s *Speaker) received() []rib.Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := map[netip.Prefix][]receivedPath{}
	for _, have := range s.sessions {
		for _, o := range have.receivedPaths() {
			was := best[o.Prefix]
			switch {
			case len(was) == 0 || o.compare(was[0]) > 0:
				best[o.Prefix] = []receivedPath{o}
			case o.compare(was[0]) == 0:
				best[o.Prefix] = append(was, o)
			}
		}
	}
	all := []rib.Route{} // none is not nil: the agent asks
	for _, offers := range best {
		for _, o := range offers {
			all = append(all, o.Route)
		}
	}
	return all
}

// receivedPaths are what the router announces now, or did before it restarted.
func (s *session) receivedPaths() (all []receivedPath) {
	if s.upSince().IsZero() && !s.config.GracefulRestart {
		return nil
	}
	return receivedPathsOf(s.server, s.config, s.config.Address.Addr(), s.log)
}
