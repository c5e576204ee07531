package layer2

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
)

// A links knows the interfaces on which this node can announce.
type links struct {
	known bool // all has been read
	all   []arp.Interface
	// wanted are the different sets of interfaces on which this node may announce addresses. The empty set stands for
	// all interfaces that have a network.
	wanted   [][]string
	excluded string // why this node can announce some address on no interface; empty: it can announce all
}

// on returns the node's interfaces that have one of these names. Without names it returns all that have a network.
func (l *links) on(names []string) []arp.Interface {
	return slices.DeleteFunc(slices.Clone(l.all), func(i arp.Interface) bool {
		return len(names) > 0 && !slices.Contains(names, i.Name) || len(names) == 0 && !i.Network
	})
}

func isConnected(i arp.Interface) bool { return i.Connected }

// cutOff reports whether all interfaces that have a network are without a carrier.
func (l *links) cutOff() bool { return l.known && !slices.ContainsFunc(l.on(nil), isConnected) }

// setWanted records the interfaces on which this node may announce addresses.
func (l *links) setWanted(node string, decisions map[netip.Addr]*announce.Decision) {
	seen := map[string]bool{}
	l.wanted = nil
	for _, d := range decisions {
		c, ok := d.Candidate(node)
		if key := strings.Join(c.Interfaces, ","); ok && !seen[key] {
			seen[key] = true
			l.wanted = append(l.wanted, c.Interfaces)
		}
	}
	l.check()
}

// check finds out whether this node can announce all addresses that it may own. Heartbeats do not tell, because they
// may use another network than the addresses.
func (l *links) check() {
	l.excluded = ""
	for _, names := range l.wanted {
		if !l.known || slices.ContainsFunc(l.on(names), isConnected) {
			continue
		}
		reason := "none of its interfaces that have a network is connected"
		if len(names) > 0 {
			reason = fmt.Sprintf("none of the interfaces %s of an L2Advertisement exists and is connected", strings.Join(names, ", "))
		}
		if l.excluded == "" || reason < l.excluded {
			l.excluded = reason
		}
	}
}

// nowhere reports whether the node has no interface on which it may announce an address. An interface without a carrier
// counts, because it may get one. No machine can have the network or broadcast address of a network.
func (s *Speaker) nowhere(a netip.Addr, names []string) bool {
	if !s.links.known {
		return true
	}
	all := s.links.on(names)
	i := slices.IndexFunc(all, func(i arp.Interface) bool { return slices.Contains(i.Reserved, a) })
	switch {
	case i >= 0:
		s.refuse(a, fmt.Sprintf("it is the network or broadcast address of a network of interface %s, which no machine can have [take it out of the pool]", all[i].Name))
		return true
	case len(all) > 0:
		return false
	}
	on := "that has a network"
	if len(names) > 0 {
		on = strings.Join(names, " or ")
	}
	s.refuse(a, fmt.Sprintf("node %s has no interface %s [which nodes have one? name them in nodeSelectors of the L2Advertisement]", s.cfg.Node, on))
	return true
}

// takeInterfaces puts the fence around new interfaces, and announces on them.
func (s *Speaker) takeInterfaces(ctx context.Context, all []arp.Interface) {
	var names, networks []string
	for _, i := range all {
		if names = append(names, i.Name); i.Network {
			networks = append(networks, i.Name)
		}
	}
	if err := s.fence.Devices(ctx, names); err != nil {
		s.reloadFence(ctx, err)
	}
	for _, name := range arp.Wireless(networks) {
		s.cfg.Log.Warn("an interface is wireless: access points may drop announcements [announce on wired interfaces: spec.interfaces of the L2Advertisement]", "interface", name)
	}
	s.links.known, s.links.all = true, all
	s.links.check()
	s.announce()
}
