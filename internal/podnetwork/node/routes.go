package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// routingTable is what we need of the kernel's main table.
type routingTable struct {
	routes    map[netip.Prefix][]route
	onLink    []onLink
	gateways  []netip.Addr // of default routes
	routers   []hop        // of other programs' routes
	learnedRA map[int]bool // links whose default route comes from router advertisements
	tunnels   map[int]Way
	pods      map[netip.Addr]bool // of this node, that have a route
}

// readRoutes sorts the main table. Routes of our protocol to pods of this node
// are the CNI plugin's: they have neither a gateway nor the type unreachable.
// tunnels are the ways of the links that are tunnels of ours.
func readRoutes(handle netlinksafe.Handle, tunnels map[int]Way) (*routingTable, error) {
	table := &routingTable{routes: map[netip.Prefix][]route{}, learnedRA: map[int]bool{}, tunnels: tunnels, pods: map[netip.Addr]bool{}}
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
		table.routers = append(table.routers, hop{via, r.LinkIndex})
	}
	switch {
	case r.Protocol == cni.RouteProtocol && r.Type == unix.RTN_UNREACHABLE:
		table.routes[dst] = append(table.routes[dst], route{dst: dst})
	case r.Protocol == cni.RouteProtocol && len(r.MultiPath) > 0:
		table.routes[dst] = append(table.routes[dst], byHops(dst, WayRoutes, hopsOf(r.MultiPath)))
	case r.Protocol == cni.RouteProtocol && via.IsValid():
		by := WayRoutes
		if tunnel, ok := table.tunnels[r.LinkIndex]; ok && r.Flags&int(netlink.FLAG_ONLINK) != 0 {
			by = tunnel
		}
		table.routes[dst] = append(table.routes[dst], route{dst: dst, via: via, link: r.LinkIndex, by: by})
	case r.Protocol == cni.RouteProtocol:
		table.pods[dst.Addr()] = true
	case dst.Bits() == 0 && via.IsValid():
		table.gateways = append(table.gateways, via)
	case r.Type == unix.RTN_UNICAST && !via.IsValid() && r.LinkIndex != 0:
		table.onLink = append(table.onLink, onLink{prefix: dst, link: r.LinkIndex})
	}
}

// ways are how our routes to other nodes' podCIDRs lead there.
func (table *routingTable) ways() map[netip.Prefix]Way {
	all := map[netip.Prefix]Way{}
	for dst, have := range table.routes {
		if len(have) == 1 && have[0].via.IsValid() {
			all[dst] = have[0].by
		}
	}
	return all
}

// syncRoutes makes ours what is wanted. refused are routes that cannot be, told
// to people once; failed is worth another try.
func syncRoutes(handle netlinksafe.Handle, ours map[netip.Prefix][]route, wanted map[netip.Prefix]route) (refused []problem, failed error) {
	for dst, have := range ours {
		if want, ok := wanted[dst]; ok && len(have) == 1 && have[0].kind() == want.kind() {
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
		if len(have) == 1 && have[0] == want.inKernel() {
			continue
		}
		write := handle.RouteAdd
		if len(have) == 1 {
			// The key of a route (destination, metric) is unique, so this
			// replaces ours and no other program's.
			write = handle.RouteReplace
		}
		err := write(kernelRoute(want))
		switch {
		case errors.Is(err, unix.EEXIST):
			refused = append(refused, problem{reason: reasonRoute, message: fmt.Sprintf("the route to %s is another program's and stays as it is (`ip route show %s`; delete it to have Fairway's)", dst, dst)})
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("set route %s: %w", dst, err))
		}
	}
	return refused, failed
}

func kernelRoute(r route) *netlink.Route {
	k := &netlink.Route{
		Dst:      &net.IPNet{IP: r.dst.Addr().AsSlice(), Mask: net.CIDRMask(r.dst.Bits(), r.dst.Addr().BitLen())},
		Protocol: cni.RouteProtocol, Type: r.kind(), LinkIndex: r.link, Table: unix.RT_TABLE_MAIN,
	}
	switch {
	case !r.via.IsValid():
	case len(r.hops()) > 1:
		k.LinkIndex = 0
		for _, h := range r.hops() {
			k.MultiPath = append(k.MultiPath, &netlink.NexthopInfo{Gw: h.via.AsSlice(), LinkIndex: h.link})
		}
	default:
		k.Gw = r.via.AsSlice()
		if by := r.inKernel().by; by != WayRoutes {
			k.Flags = int(netlink.FLAG_ONLINK)
		}
	}
	return k
}

// hopsOf reads next hops, in an order of our own: the kernel's changes.
func hopsOf(all []*netlink.NexthopInfo) (hops []hop) {
	for _, n := range all {
		via, _ := netip.AddrFromSlice(n.Gw)
		hops = append(hops, hop{via.Unmap(), n.LinkIndex})
	}
	slices.SortFunc(hops, compareHops)
	return hops
}

func compareHops(a, b hop) int { return cmp.Or(a.via.Compare(b.via), cmp.Compare(a.link, b.link)) }

// prefixOf reads a destination; nil means everything.
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

func sortedKeys(routes map[netip.Prefix]route) []netip.Prefix {
	keys := make([]netip.Prefix, 0, len(routes))
	for dst := range routes {
		keys = append(keys, dst)
	}
	slices.SortFunc(keys, comparePrefixes)
	return keys
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
