package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// connect joins two namespaces by a veth pair that is up.
func connect(a *Namespace, aName string, b *Namespace, bName string) (atA, atB netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(b.fd)}
	if err := a.link.LinkAdd(veth); err != nil {
		return nil, nil, fmt.Errorf("add veth pair %s-%s (the kernel may lack veth): %w", aName, bName, err)
	}
	for _, end := range []struct {
		ns   *Namespace
		name string
		link *netlink.Link
	}{{a, aName, &atA}, {b, bName, &atB}} {
		l, err := end.ns.link.LinkByName(end.name)
		if err != nil {
			return nil, nil, fmt.Errorf("find %s: %w", end.name, err)
		}
		if err := end.ns.link.LinkSetUp(l); err != nil {
			return nil, nil, fmt.Errorf("bring %s up: %w", end.name, err)
		}
		*end.link = l
	}
	return atA, atB, nil
}

// awaitUp waits until the link carries packets, and the namespace accepts packets to the link's IPv6 addresses. The
// kernel brings up queues, the link-local address and local routes only after LinkSetUp and AddrAdd have returned, in
// work that waits for RTNL. Until then it drops packets.
func (n *Namespace) awaitUp(l netlink.Link) error {
	name := l.Attrs().Name
	missing, err := lookUntil(func() (missing string, err error) {
		l, err := n.link.LinkByName(name)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", name, err)
		}
		if l.Attrs().OperState != netlink.OperUp {
			return fmt.Sprintf("it is %v", l.Attrs().OperState), nil
		}
		return n.unusable(l, true)
	})
	if err == nil && missing != "" {
		err = fmt.Errorf("link %s in %s carries no packets after %d looks: %s", name, n.Name, looks, missing)
	}
	return err
}

// awaitUsable waits until the namespace accepts packets to the link's IPv6 addresses.
func (n *Namespace) awaitUsable(l netlink.Link) error {
	missing, err := lookUntil(func() (string, error) { return n.unusable(l, false) })
	if err == nil && missing != "" {
		err = fmt.Errorf("addresses of %s in %s are not usable after %d looks: %s", l.Attrs().Name, n.Name, looks, missing)
	}
	return err
}

// looks bounds the number of looks while waiting for the kernel, one a millisecond. There is no limit by time: a
// process that removes namespaces holds RTNL for seconds, and one look may wait as long.
const looks = 5000

// lookUntil calls look until nothing is missing, or returns the result of the last look.
func lookUntil(look func() (missing string, err error)) (missing string, err error) {
	for range looks {
		if missing, err = look(); missing == "" || err != nil {
			return missing, err
		}
		time.Sleep(time.Millisecond) // poll
	}
	return missing, nil
}

// unusable returns the IPv6 addresses of the link without a local route. The kernel adds the route at the end of
// duplicate address detection, even if there is none to do. If the link must have a link-local address, a missing one
// is unusable too.
func (n *Namespace) unusable(l netlink.Link, linkLocal bool) (missing string, err error) {
	addrs, err := n.link.AddrList(l, unix.AF_INET6)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return "what addresses it has", nil
	}
	if err != nil {
		return "", fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, LinkIndex: l.Attrs().Index, Type: unix.RTN_LOCAL}
	routes, err := n.link.RouteListFiltered(unix.AF_INET6, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF|netlink.RT_FILTER_TYPE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return "", fmt.Errorf("list local routes of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Dst != nil && r.Dst.IP.Equal(a.IP) }) {
			return fmt.Sprintf("%v has no local route", a.IP), nil
		}
		linkLocal = linkLocal && !a.IP.IsLinkLocalUnicast()
	}
	if linkLocal {
		return "it has no link-local address", nil
	}
	return "", nil
}

// addAddr gives the link an address.
func (n *Namespace) addAddr(l netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := n.link.AddrAdd(l, a); err != nil {
		return fmt.Errorf("add address %v to %s: %w", p, l.Attrs().Name, err)
	}
	return nil
}

// addRoute adds a route for a prefix through the link, by the gateway if it is valid.
func (n *Namespace) addRoute(l netlink.Link, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to)}
	if via.IsValid() {
		r.Gw = via.AsSlice()
		r.Flags = int(netlink.FLAG_ONLINK) // a pod's gateway is in no subnet
	} else if to.Addr().Is4() {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := n.link.RouteAdd(r); err != nil {
		return fmt.Errorf("add route to %v: %w", to, err)
	}
	return nil
}

// addNeighbor adds a permanent neighbour entry for the address.
func (n *Namespace) addNeighbor(l netlink.Link, ip netip.Addr, mac net.HardwareAddr) error {
	err := n.link.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, IP: ip.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT,
	})
	if err != nil {
		return fmt.Errorf("add neighbour %v: %w", ip, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// hostPrefix returns the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
