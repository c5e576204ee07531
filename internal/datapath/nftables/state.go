package nftables

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// state is what the kernel holds, all of it.
type state struct {
	frontends map[service.Key]*held
	hairpins  map[netip.Addr]int // how many frontends need it; 1 where not known
	reserved  map[netip.Addr]int // how many frontends reserve it; 1 where not known
	facts     facts

	uses    map[how]int // how many elements lead there
	chains  map[how]way // the chains that are there
	lastOwn how         // the number of the last chain of somebody's own

	ids      map[stickyName]id
	lastID   id
	stickies map[id]*sticky
	classes  [maxClasses]uint32 // durations in use, 0: free
	learners map[class]uint32   // those that the kernel knows

	// last is what was filled last: the frontends of a Service have routes in common.
	last struct {
		route   *service.Route
		balance service.Algorithm
		slots   []slot
	}
}

// A way is the chain that a how leads to.
type way struct {
	what  how  // what it does
	right bool // it is there, and of this program
}

func newState() *state {
	return &state{
		frontends: map[service.Key]*held{},
		hairpins:  map[netip.Addr]int{},
		reserved:  map[netip.Addr]int{},
		uses:      map[how]int{},
		chains:    map[how]way{},
		ids:       map[stickyName]id{},
		stickies:  map[id]*sticky{},
		learners:  map[class]uint32{},
	}
}

// at returns what is held for k, an empty one if nothing is.
func (s *state) at(k service.Key) *held {
	if h := s.frontends[k]; h != nil {
		return h
	}
	return &held{}
}

// put replaces what is held for k and counts the ways and ids in use.
func (s *state) put(k service.Key, is *held) {
	was := s.at(k)
	was.count(s.uses, -1)
	is.count(s.uses, +1)
	s.listAll(k, was, false)
	s.listAll(k, is, true)
	if is.empty() {
		delete(s.frontends, k)
		return
	}
	s.frontends[k] = is
}

// listAll notes that the frontend k has its ids, or has them no more.
func (s *state) listAll(k service.Key, h *held, has bool) {
	if h.more != nil && h.more.id|h.more.outsideID != 0 {
		s.list(h.more.id, k, has)
		s.list(h.more.outsideID, k, has)
	}
}

// facts are the Settings as the kernel has them.
type facts struct {
	pods, services []netip.Prefix
	links          []string
	// nodePorts are where NodePorts are served on those addresses that the kernel says
	// are the node's; hosts are addresses that serve and are known to be the node's.
	nodePorts []netip.Prefix
	hosts     []netip.Addr
}

func factsOf(s service.Settings) facts {
	f := facts{pods: s.Pods, services: s.ServiceCIDRs, links: s.PodInterfaces}
	for _, a := range s.NodeIPs {
		a = a.Unmap().WithZone("")
		serves := slices.ContainsFunc(s.NodePorts, func(p netip.Prefix) bool { return p.Contains(a) })
		if serves && !a.IsLoopback() && !slices.Contains(f.hosts, a) {
			f.hosts = append(f.hosts, a)
		}
	}
	for _, p := range s.NodePorts {
		if !p.IsSingleIP() || !slices.Contains(f.hosts, p.Addr()) {
			f.nodePorts = append(f.nodePorts, p)
		}
	}
	return f
}

// settings is the inverse of factsOf, but for NodeIPs that serve nothing.
func (f *facts) settings() service.Settings {
	s := service.Settings{Pods: f.pods, ServiceCIDRs: f.services, PodInterfaces: f.links, NodeIPs: f.hosts}
	all := f.nodePorts
	for _, a := range f.hosts {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, fam := range families {
		for _, r := range nft.Ranges(all, fam.is4) {
			s.NodePorts = append(s.NodePorts, r.Prefixes()...)
		}
	}
	return s
}
