package bgp

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/fairway-net/fairway/internal/announce"
	"github.com/fairway-net/fairway/internal/rib"
)

const (
	// relearn is how long after its start a Speaker holds on to what the one before had received from
	// a router whose session is not up yet, and filling how long a session's first routes take.
	relearn = 30 * time.Second
	filling = 2 * time.Second
	// defaultPref is the LOCAL_PREF of routes without one.
	defaultPref = 100
)

// podCIDRs are what the agent wants announced. What cannot be read is as it was.
func (s *Speaker) podCIDRs() []netip.Prefix {
	all, err := s.cfg.RIB.PodCIDRs()
	if err != nil {
		s.cfg.Log.Error("cannot read the node's podCIDRs; they are announced as before", "err", err)
		return s.own
	}
	s.own = all
	return all
}

// tell has the agent know what routers announce, until ctx ends. Then it stays as it is: the next
// Speaker learns it anew.
func (s *Speaker) tell(ctx context.Context) {
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
		case <-s.heard:
		case <-timer.C:
		}
		asked, err := s.cfg.RIB.Asked()
		if err != nil {
			continue // podCIDRs says so
		}
		var all []rib.Route
		if asked {
			before = slices.DeleteFunc(before, func(r rib.Route) bool { return time.Since(began) > relearn || s.filled(r.Router) })
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
			s.cfg.Log.Error("cannot tell the agent what routers announce, will try again", "err", err, "again", again)
			timer.Reset(again)
		} else if len(before) > 0 {
			timer.Reset(filling / 4)
		}
	}
}

// heardOf is called when a router has announced something. A route reflector passes it on.
func (s *Speaker) heardOf() {
	s.hear()
	if s.reflects.Load() {
		s.notify()
	}
}

// hear makes tell look again.
func (s *Speaker) hear() {
	select {
	case s.heard <- struct{}{}:
	default:
	}
}

func compareRoutes(a, b rib.Route) int {
	return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), a.NextHop.Compare(b.NextHop), a.Router.Compare(b.Router))
}

// filled reports whether a router has had the time to tell all that it knows; of no valid router, whether
// all have.
func (s *Speaker) filled(router netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := false
	for _, have := range s.sessions {
		if !router.IsValid() || have.config.Address.Addr() == router {
			since := have.upSince()
			if is = !since.IsZero() && time.Since(since) > filling; !is {
				return false
			}
		}
	}
	return is
}

// An offer is what one router says of a prefix.
type offer struct {
	rib.Route
	pref uint32 // higher is better
	hops int    // fewer are better, at equal pref
	path []uint32
}

func (o offer) better(than offer) int {
	return cmp.Or(cmp.Compare(o.pref, than.pref), cmp.Compare(than.hops, o.hops))
}

// received returns the best offers for each prefix: those of several routers where they are equal.
func (s *Speaker) received() []rib.Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := map[netip.Prefix][]offer{}
	for _, have := range s.sessions {
		for _, o := range have.offers() {
			was := best[o.Prefix]
			switch {
			case len(was) == 0 || o.better(was[0]) > 0:
				best[o.Prefix] = []offer{o}
			case o.better(was[0]) == 0:
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

// offers are what the router announces now, or did before it restarted.
func (s *session) offers() (all []offer) {
	if s.upSince().IsZero() && !s.config.GracefulRestart {
		return nil
	}
	return offersOf(s.server, s.config, s.config.Address.Addr(), s.log)
}

// offersOf are what a peer of a server announces.
func offersOf(from *server.BgpServer, c announce.SessionConfig, router netip.Addr, log *slog.Logger) (all []offer) {
	for _, f := range []struct {
		carried bool
		family  wire.Family
	}{{c.IPv4, wire.RF_IPv4_UC}, {c.IPv6, wire.RF_IPv6_UC}} {
		if !f.carried {
			continue
		}
		r := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_ADJ_IN, Name: router.String(), Family: f.family}
		err := from.ListPath(r, func(nlri wire.NLRI, paths []*apiutil.Path) {
			prefix, err := netip.ParsePrefix(nlri.String())
			for _, p := range paths {
				if o := offerOf(p); err == nil && o.NextHop.IsValid() {
					o.Prefix, o.Router = prefix.Masked(), router
					all = append(all, o)
				}
			}
		})
		if err != nil {
			log.Warn("what the router announces cannot be read", "err", err)
		}
	}
	return all
}

// offerOf reads a path's attributes.
func offerOf(p *apiutil.Path) offer {
	o := offer{pref: defaultPref}
	for _, attr := range p.Attrs {
		switch a := attr.(type) {
		case *wire.PathAttributeNextHop:
			o.NextHop = a.Value
		case *wire.PathAttributeMpReachNLRI:
			o.NextHop = a.Nexthop
		case *wire.PathAttributeLocalPref:
			o.pref = a.Value
		case *wire.PathAttributeAsPath:
			for _, segment := range a.Value {
				o.hops += segment.ASLen()
				o.path = append(o.path, segment.GetAS()...)
			}
		}
	}
	for _, attr := range p.Attrs { // RFC 8326: it is about to go
		if a, ok := attr.(*wire.PathAttributeCommunities); ok && slices.Contains(a.Value, announce.GracefulShutdown.Number()) {
			o.pref = 0
		}
	}
	return o
}
