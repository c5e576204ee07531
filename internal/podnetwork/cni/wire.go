package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// RouteProtocol marks every route that Fairway makes on a node (`ip route show proto 70`). A route to a pod has no
// gateway. Routes with a gateway are the agent's routes to peers.
const RouteProtocol = numbers.RouteProtocol

// The pods' gateways. No interface has these addresses; see the package comment.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

func gatewayFor(addr netip.Addr) netip.Addr {
	if addr.Is4() {
		return gateway4
	}
	return gateway6
}

// A vethPair is a veth pair with its settings on both sides.
type vethPair struct {
	attachment
	addrs []netip.Addr
	mtu   int
	alias string
	// bandwidth are the pod's limits; nil: none.
	bandwidth *bandwidth
}

// connect makes the pair. After an error nothing of it is left.
func (w vethPair) connect(host netlinksafe.Handle, podNS ns.NetNS) (err error) {
	hostMAC, podMAC := w.macs()
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: w.hostLink(), MTU: w.mtu, HardwareAddr: hostMAC, Flags: net.FlagUp, TxQLen: -1, Group: group(w.network)},
		PeerName:         w.ifName,
		PeerNamespace:    netlink.NsFd(int(podNS.Fd())),
		PeerHardwareAddr: podMAC,
		PeerMTU:          uint32(w.mtu),
	}
	// Both ends appear in one step in their own namespaces. No link has to be moved or renamed, and the names cannot
	// race with another plugin's names.
	if err := host.LinkAdd(veth); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return failf(types.ErrInvalidNetworkConfig, "interface %s or its host side %s exists already (was the container added twice? DEL it first)", w.ifName, w.hostLink())
		}
		return fmt.Errorf("create veth pair %s: %w", w.hostLink(), err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeLink(host, w.hostLink()))
		}
	}()
	if err := podNS.Do(func(ns.NetNS) error { return w.connectPod(hostMAC) }); err != nil {
		return fmt.Errorf("connect the pod's side: %w", err)
	}
	if err := w.connectHost(host, podMAC); err != nil {
		return fmt.Errorf("connect the host's side: %w", err)
	}
	return nil
}

// connectPod runs in the pod's namespace.
func (w vethPair) connectPod(hostMAC net.HardwareAddr) error {
	pod, err := OpenNetlink()
	if err != nil {
		return err
	}
	defer pod.Close()
	link, err := pod.LinkByName(w.ifName)
	if err != nil {
		return fmt.Errorf("find link %s: %w", w.ifName, err)
	}
	if err := setSysctls(w.podSysctls()); err != nil {
		return err
	}
	for _, addr := range w.addrs {
		// No other pod has the address, so duplicate address detection would only keep IPv6 unusable for a second.
		a := &netlink.Addr{IPNet: hostPrefix(addr)}
		if addr.Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := pod.AddrAdd(link, a); err != nil {
			return fmt.Errorf("add address %s: %w", addr, err)
		}
	}
	if err := pod.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", w.ifName, err)
	}
	for _, addr := range w.addrs {
		if err := setNeighbour(pod, link, gatewayFor(addr), hostMAC); err != nil {
			return err
		}
		routes := podRoutes(link.Attrs().Index, addr)
		if addr.Is6() {
			routes = append(routes, localRoute(link.Attrs().Index, addr))
		}
		for _, route := range routes {
			if err := pod.RouteAdd(route); err != nil {
				return fmt.Errorf("add route %s: %w", route.Dst, err)
			}
		}
	}
	return nil
}

// connectHost runs in the node's namespace.
//
// The routes have no source address. So the kernel uses an address of the node for kubelet's probes, because this link
// has none, and another address when the node's addresses change. A route with a source would be deleted together with
// that address, and the pod would be cut off.
func (w vethPair) connectHost(host netlinksafe.Handle, podMAC net.HardwareAddr) error {
	link, err := host.LinkByName(w.hostLink())
	if err != nil {
		return fmt.Errorf("find link %s: %w", w.hostLink(), err)
	}
	if err := host.LinkSetAlias(link, w.alias); err != nil {
		return fmt.Errorf("set alias of %s: %w", w.hostLink(), err)
	}
	if err := setSysctls(w.hostSysctls()); err != nil {
		return err
	}
	// Both ends have permanent entries. With arp_accept on for all links, which a single link cannot turn off, ARP
	// packets of a pod would make entries of invented neighbours, in a table of limited size that all links share.
	if err := host.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("switch ARP off on %s: %w", w.hostLink(), err)
	}
	for _, addr := range w.addrs {
		if err := setNeighbour(host, link, addr, podMAC); err != nil {
			return err
		}
		route := HostRoute(link.Attrs().Index, addr)
		err := host.RouteAdd(route)
		if errors.Is(err, unix.EEXIST) && checkRoute(host, route) == nil {
			continue // the agent has just restored the route
		}
		if errors.Is(err, unix.EEXIST) {
			// The store was lost while pods were running. The next try gets the next address, because the store
			// remembers the last one.
			return failf(types.ErrTryAgainLater, "address %s is routed to another link already (`ip route get %s` shows it; trying again takes another address)", addr, addr)
		}
		if err != nil {
			return fmt.Errorf("add route %s: %w", addr, err)
		}
	}
	return nil
}

// podRoutes returns the pod's routes: the route to the gateway, and all other destinations through the gateway.
func podRoutes(link int, addr netip.Addr) []*netlink.Route {
	gateway := gatewayFor(addr)
	all := &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	if addr.Is4() {
		all = &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	}
	defaultRoute := &netlink.Route{LinkIndex: link, Dst: all, Gw: gateway.AsSlice()}
	if addr.Is6() {
		return []*netlink.Route{defaultRoute} // fe80::/64 is on the link anyway
	}
	return []*netlink.Route{
		{LinkIndex: link, Dst: hostPrefix(gateway), Scope: netlink.SCOPE_LINK},
		defaultRoute,
	}
}

// localRoute returns the route by which the pod accepts packets to its IPv6 address. The kernel adds such a route too, but
// from a work queue that all namespaces of the machine share: on a busy node seconds after the address. The kernel's
// route has the better metric, so both can exist.
func localRoute(link int, addr netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: link, Dst: hostPrefix(addr), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Protocol: RouteProtocol}
}

// HostRoute returns the node's route to a pod.
func HostRoute(link int, addr netip.Addr) *netlink.Route {
	route := &netlink.Route{LinkIndex: link, Dst: hostPrefix(addr), Protocol: RouteProtocol}
	if addr.Is4() {
		route.Scope = netlink.SCOPE_LINK
	}
	return route
}

// podSysctls returns the sysctls of the pod's link. There is one route out of a pod, so redirects and router
// advertisements must not add another. A runtime may have turned IPv6 off.
func (w vethPair) podSysctls() []setting {
	all := []setting{
		{"ipv4/conf/all/accept_redirects", "0"},
		{"ipv4/conf/" + w.ifName + "/accept_redirects", "0"},
		{"ipv6/conf/" + w.ifName + "/accept_redirects", "0"},
		{"ipv6/conf/" + w.ifName + "/accept_ra", "0"},
	}
	if w.hasIPv6() {
		all = append(all, setting{"ipv6/conf/" + w.ifName + "/disable_ipv6", "0"})
	}
	return all
}

// hostSysctls returns the sysctls of the host side link. Strict reverse path filtering lets the pod send only from its
// own IPv4 addresses, also without the agent's rules (node/pods.nft). The other sysctls keep the pod from configuring
// the node, whatever the defaults are. ARP and ND packets of the pod make no neighbour entry, and the node answers for
// no other host. The node does not forward source-routed packets, because rules see another destination than the packet
// has later.
func (w vethPair) hostSysctls() []setting {
	name := w.hostLink()
	all := []setting{
		{"ipv4/conf/" + name + "/rp_filter", "1"},
		{"ipv4/conf/" + name + "/accept_redirects", "0"},
		{"ipv4/conf/" + name + "/send_redirects", "0"},
		{"ipv4/conf/" + name + "/accept_source_route", "0"},
		{"ipv4/conf/" + name + "/arp_accept", "0"},
		{"ipv4/conf/" + name + "/proxy_arp", "0"},
		{"ipv6/conf/" + name + "/accept_redirects", "0"},
		{"ipv6/conf/" + name + "/accept_ra", "0"},
		{"ipv6/conf/" + name + "/accept_source_route", "0"},
		{"ipv6/conf/" + name + "/seg6_enabled", "0"},
		{"ipv6/conf/" + name + "/rpl_seg_enabled", "0"},
		{"ipv6/conf/" + name + "/accept_untracked_na", "0"},
		{"ipv6/conf/" + name + "/proxy_ndp", "0"},
	}
	if w.hasIPv6() {
		all = append(all, setting{"ipv6/conf/" + name + "/disable_ipv6", "0"})
	}
	return all
}

func (w vethPair) hasIPv6() bool {
	return slices.ContainsFunc(w.addrs, netip.Addr.Is6)
}

// A setting is a sysctl below net and its value.
type setting struct{ name, value string }

// setSysctls writes in the calling thread's namespace. The files of IPv6 may be missing, in a kernel without IPv6 or on
// a link below 1280 bytes. IPv4 works without them, and an IPv6 address is refused when it is added.
func setSysctls(all []setting) error {
	for _, s := range all {
		_, err := sysctl.Sysctl("net/"+s.name, s.value)
		if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(s.name, "ipv6/") {
			continue
		}
		if err != nil {
			return fmt.Errorf("set sysctl: %w [is /proc/sys writable?]", err)
		}
	}
	return nil
}

func setNeighbour(h netlinksafe.Handle, link netlink.Link, addr netip.Addr, mac net.HardwareAddr) error {
	err := h.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: addr.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", addr, err)
	}
	return nil
}

// hostPrefix returns an address as a prefix, /32 or /128.
func hostPrefix(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}

// uplinkMTU returns the MTU of the default route's link, or the MTU of Ethernet.
func uplinkMTU(host netlinksafe.Handle) int {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := host.RouteList(nil, family)
		if err != nil {
			continue
		}
		for _, route := range routes {
			if ones := defaultBits(route.Dst); ones != 0 || route.LinkIndex == 0 {
				continue
			}
			if link, err := host.LinkByIndex(route.LinkIndex); err == nil {
				return link.Attrs().MTU
			}
		}
	}
	return 1500
}

// defaultBits returns the length of a route's destination. Some versions of netlink return nil for a default route.
func defaultBits(dst *net.IPNet) int {
	if dst == nil {
		return 0
	}
	ones, _ := dst.Mask.Size()
	return ones
}
