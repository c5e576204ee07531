package layer2

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
)

const (
	// isolatedFor is after how long without a majority a node counts as one that was cut off.
	isolatedFor = time.Second
	// routesRead is how often routes are read while nothing happens to the links, routesKnown for
	// how long one is remembered, and routesAwaited how long one is waited for.
	routesRead, routesKnown, routesAwaited = 30 * time.Second, 2 * time.Minute, 5 * time.Minute
	// routesPoll is how often they are read while some are waited for.
	routesPoll = 200 * time.Millisecond
)

// holdDown is how long a node that was cut off leaves its addresses where they are: its agent may
// not know yet what has changed in the cluster. A variable for tests.
var holdDown = 10 * time.Second

// A holdBack decides whether a node that was cut off waits before it takes addresses back.
type holdBack struct {
	hadMajority bool // a majority, ever
	lost        time.Time
	until       time.Time
}

// note is told with every beat whether a majority is heard.
func (h *holdBack) note(majority bool, now time.Time) {
	switch {
	case !majority && h.hadMajority && h.lost.IsZero():
		h.lost = now
	case majority:
		if h.isolated(now) {
			h.until = now.Add(holdDown)
		}
		h.hadMajority, h.lost = true, time.Time{}
	}
}

func (h *holdBack) waits(now time.Time) bool { return now.Before(h.until) }

// isolated reports whether no majority has been heard for longer than any grant lasts.
func (h *holdBack) isolated(now time.Time) bool {
	return !h.lost.IsZero() && now.Sub(h.lost) >= isolatedFor
}

// ready says whether the node can carry traffic: one that is or was cut off may not, and one that is unfit
// does not. The others have its addresses meanwhile, if one of them can.
func (s *Speaker) ready() {
	missing, unfit := s.routes.Missing(), s.links.unfit
	if unfit == "" && s.cfg.Unfit != nil {
		unfit = s.cfg.Unfit()
	}
	waits := len(missing) > 0 || s.back.waits(time.Now()) || s.back.isolated(time.Now())
	s.member.SetUnready(waits || unfit != "")
	if unfit != s.unfit {
		if s.unfit = unfit; unfit != "" {
			s.cfg.Log.Warn("this node is not healthy: another node takes its addresses, if one is healthier", "reason", unfit)
		} else {
			s.cfg.Log.Info("this node is healthy again")
		}
	}
	if waits == s.waits {
		return
	}
	if s.waits = waits; waits {
		s.cfg.Log.Info("this node is or was cut off: other nodes take its addresses until it is healthy", "atLeast", holdDown, "missingRoutes", missing)
	} else {
		s.cfg.Log.Info("this node takes its addresses back")
	}
}

// A route is one of the node's through a router, or to pods of another node.
type route struct{ device, to, via string }

func (r route) String() string { return fmt.Sprintf("%s via %s dev %s", r.to, r.via, r.device) }

// A routeWatch knows which routes the kernel has dropped with a link that went down, and that
// nobody has written again since it is back: the kernel forgets them, and the node's network
// manager and the agent write them some time after the link is up. Until then the node could not
// serve what it announces.
type routeWatch struct {
	mu      sync.Mutex
	seen    map[route]time.Time
	down    map[string]bool
	missing map[route]time.Time // and until when they are waited for
}

func newRouteWatch() *routeWatch {
	return &routeWatch{seen: map[route]time.Time{}, down: map[string]bool{}, missing: map[route]time.Time{}}
}

// Missing returns the routes that are waited for, sorted.
func (w *routeWatch) Missing() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.missing {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return all
}

// routers returns the routers that lead everywhere by one of these interfaces, sorted, and by which.
func (w *routeWatch) routers(on []arp.Interface) (devices []string, routers []netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range w.seen {
		a, err := netip.ParseAddr(r.via)
		if err != nil || r.to != "default" && r.to != "0.0.0.0/0" && r.to != "::/0" || !slices.ContainsFunc(on, func(i arp.Interface) bool { return i.Name == r.device }) {
			continue
		}
		devices, routers = append(devices, r.device), append(routers, a)
	}
	slices.Sort(devices)
	slices.SortFunc(routers, netip.Addr.Compare)
	return slices.Compact(devices), slices.Compact(routers)
}

// linkDown notes that a link is down.
func (w *routeWatch) linkDown(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down[name] = true
}

// read takes the routes that there are, and the links that are up.
func (w *routeWatch) read(now time.Time, routes []route, up map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range routes {
		if up[r.device] {
			w.seen[r] = now
			delete(w.missing, r)
		}
	}
	for name := range w.down {
		if !up[name] {
			continue
		}
		delete(w.down, name)
		for r, at := range w.seen {
			if r.device == name && at != now {
				w.missing[r] = now.Add(routesAwaited)
			}
		}
	}
	maps.DeleteFunc(w.missing, func(_ route, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(w.seen, func(r route, at time.Time) bool { return !w.down[r.device] && now.Sub(at) > routesKnown })
}

// run follows the kernel until ctx ends.
func (w *routeWatch) run(ctx context.Context) error {
	events := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribe(events, ctx.Done()); err != nil {
		return fmt.Errorf("watch interfaces: %w", err)
	}
	defer func() {
		for range events { // its sender ends with ctx
		}
	}()
	for {
		pause := routesRead
		if err := w.look(); err != nil || len(w.Missing()) > 0 {
			pause = routesPoll
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case e, ok := <-events:
			if timer.Stop(); !ok {
				if ctx.Err() != nil {
					return nil
				}
				return errors.New("the kernel's news of interfaces were lost")
			}
			if !isUp(e.Link) {
				w.linkDown(e.Link.Attrs().Name)
			}
		}
	}
}

func isUp(l netlink.Link) bool {
	return l.Attrs().RawFlags&unix.IFF_UP != 0 && l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
}

// look reads links and routes.
func (w *routeWatch) look() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	names, up := map[int]string{}, map[string]bool{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		if up[a.Name] = isUp(l); !up[a.Name] {
			w.linkDown(a.Name)
		}
	}
	all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	var routes []route
	for _, r := range all {
		if r.Gw != nil && names[r.LinkIndex] != "" {
			to := "default"
			if r.Dst != nil {
				to = r.Dst.String()
			}
			routes = append(routes, route{names[r.LinkIndex], to, r.Gw.String()})
		}
	}
	w.read(time.Now(), routes, up)
	return nil
}
