package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// routingTable is the part of the kernel's main table that the package needs.
type routingTable struct {
	routes    map[netip.Prefix][]plan.Route
	onLink    []plan.OnLink
	gateways  []netip.Addr // of default routes
	routers   []plan.Hop   // of other programs' routes
	learnedRA map[int]bool // links with a default route from router advertisements
	tunnels   map[int]plan.Way
	pods      map[netip.Addr]int // pods of this node that have a route, and their links
	foreign   []plan.Route       // other programs' routes; Via is invalid for the network of a link
}

// readRoutes reads the main table. Routes of our protocol without a gateway, which are not unreachable routes, are the
// CNI plugin's routes to pods of this node. tunnels has the ways of the tunnels' links.
func readRoutes(handle netlinksafe.Handle, tunnels map[int]plan.Way) (*routingTable, error) {
	table := &routingTable{routes: map[netip.Prefix][]plan.Route{}, learnedRA: map[int]bool{}, tunnels: tunnels, pods: map[netip.Addr]int{}}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := handle.RouteList(nil, family)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			table.add(family, r)
		}
	}
	return table, nil
}

func (table *routingTable) add(family int, r netlink.Route) {
	dst := prefixOf(r.Dst, family)
	via, _ := netip.AddrFromSlice(r.Gw)
	via = via.Unmap()
	if r.Protocol == unix.RTPROT_RA && dst.Bits() == 0 {
		table.learnedRA[r.LinkIndex] = true
	}
	if r.Protocol != cni.RouteProtocol && r.Type == unix.RTN_UNICAST && via.IsValid() && r.LinkIndex != 0 {
		table.routers = append(table.routers, plan.Hop{Via: via, Link: r.LinkIndex})
	}
	if r.Protocol != cni.RouteProtocol && r.Type == unix.RTN_UNICAST && r.LinkIndex != 0 {
		table.foreign = append(table.foreign, plan.Route{Dst: dst, Via: via, Link: r.LinkIndex})
	}
	switch {
	case r.Protocol == cni.RouteProtocol && r.Type == unix.RTN_UNREACHABLE:
		table.routes[dst] = append(table.routes[dst], plan.Route{Dst: dst})
	case r.Protocol == cni.RouteProtocol && len(r.MultiPath) > 0:
		table.routes[dst] = append(table.routes[dst], plan.RouteBy(dst, plan.WayRoutes, hopsOf(r.MultiPath)))
	case r.Protocol == cni.RouteProtocol && via.IsValid():
		by := plan.WayRoutes
		if way, ok := table.tunnels[r.LinkIndex]; ok && r.Flags&int(netlink.FLAG_ONLINK) != 0 {
			by = way
		}
		table.routes[dst] = append(table.routes[dst], plan.Route{Dst: dst, Via: via, Link: r.LinkIndex, By: by})
	case r.Protocol == cni.RouteProtocol:
		table.pods[dst.Addr()] = r.LinkIndex
	case dst.Bits() == 0 && via.IsValid():
		table.gateways = append(table.gateways, via)
	case r.Type == unix.RTN_UNICAST && !via.IsValid() && r.LinkIndex != 0:
		table.onLink = append(table.onLink, plan.OnLink{Prefix: dst, Link: r.LinkIndex})
	}
}

// ways returns the ways of our routes to other nodes' podCIDRs.
func (table *routingTable) ways() map[netip.Prefix]plan.Way {
	all := map[netip.Prefix]plan.Way{}
	for dst, have := range table.routes {
		if len(have) == 1 && have[0].Via.IsValid() {
			all[dst] = have[0].By
		}
	}
	return all
}

// syncRoutes makes our routes the wanted ones. refused are problems that another try does not mend. failed is worth
// another try.
func syncRoutes(handle netlinksafe.Handle, ours map[netip.Prefix][]plan.Route, wanted map[netip.Prefix]plan.Route) (refused []plan.Problem, failed error) {
	for dst, have := range ours {
		if want, ok := wanted[dst]; ok && len(have) == 1 && kindOf(have[0]) == kindOf(want) {
			continue // right, or replaced in one step below
		}
		for _, r := range have {
			if err := handle.RouteDel(kernelRoute(r)); err != nil && !errors.Is(err, unix.ESRCH) {
				failed = errors.Join(failed, fmt.Errorf("delete route %s: %w", dst, err))
			}
		}
		delete(ours, dst)
	}
	for _, dst := range sortedKeys(wanted) {
		want, have := wanted[dst], ours[dst]
		if len(have) == 1 && have[0] == asRead(want) {
			continue
		}
		write := handle.RouteAdd
		if len(have) == 1 {
			// The key of a route (destination, metric) is unique, so this replaces our route and no other program's.
			write = handle.RouteReplace
		}
		err := write(kernelRoute(want))
		switch {
		case errors.Is(err, unix.EEXIST):
			refused = append(refused, plan.Problem{Reason: plan.ReasonRoute, Message: fmt.Sprintf("the route to %s is another program's and stays as it is (`ip route show %s`; delete it to have Fairway's)", dst, dst)})
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("set route %s: %w", dst, err))
		}
	}
	return refused, failed
}

// asRead returns the route as the kernel returns it, without its announcement by a router.
func asRead(r plan.Route) plan.Route {
	if r.By == plan.WayBGP {
		r.By = plan.WayRoutes
	}
	return r
}

func kindOf(r plan.Route) int {
	if r.Via.IsValid() {
		return unix.RTN_UNICAST
	}
	return unix.RTN_UNREACHABLE
}

func kernelRoute(r plan.Route) *netlink.Route {
	k := &netlink.Route{
		Dst:      &net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())},
		Protocol: cni.RouteProtocol, Type: kindOf(r), LinkIndex: r.Link, Table: unix.RT_TABLE_MAIN,
	}
	switch {
	case !r.Via.IsValid():
	case len(r.Hops()) > 1:
		k.LinkIndex = 0
		for _, h := range r.Hops() {
			k.MultiPath = append(k.MultiPath, &netlink.NexthopInfo{Gw: h.Via.AsSlice(), LinkIndex: h.Link})
		}
	default:
		k.Gw = r.Via.AsSlice()
		if by := asRead(r).By; by != plan.WayRoutes {
			k.Flags = int(netlink.FLAG_ONLINK)
		}
	}
	return k
}

// hopsOf reads next hops and sorts them, because the kernel's order changes.
func hopsOf(all []*netlink.NexthopInfo) (hops []plan.Hop) {
	for _, n := range all {
		via, _ := netip.AddrFromSlice(n.Gw)
		hops = append(hops, plan.Hop{Via: via.Unmap(), Link: n.LinkIndex})
	}
	slices.SortFunc(hops, plan.CompareHops)
	return hops
}

// prefixOf reads a destination. Nil means all addresses of the family.
func prefixOf(dst *net.IPNet, family int) netip.Prefix {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if family == netlink.FAMILY_V4 {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	if dst == nil {
		return all
	}
	addr, _ := netip.AddrFromSlice(dst.IP)
	if family == netlink.FAMILY_V4 {
		addr = addr.Unmap()
	}
	bits, _ := dst.Mask.Size()
	return netip.PrefixFrom(addr, bits)
}

func sortedKeys(routes map[netip.Prefix]plan.Route) []netip.Prefix {
	keys := make([]netip.Prefix, 0, len(routes))
	for dst := range routes {
		keys = append(keys, dst)
	}
	slices.SortFunc(keys, netip.Prefix.Compare)
	return keys
}
