package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
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

// awaitUp waits until the link carries packets: the kernel brings queues and the
// link-local address up after LinkSetUp has returned, and drops what is sent before.
func (n *Namespace) awaitUp(l netlink.Link) error {
	name := l.Attrs().Name
	deadline := time.Now().Add(5 * time.Second)
	for {
		l, err := n.link.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		addrs, err := n.link.AddrList(l, unix.AF_INET6)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list addresses of %s: %w", name, err)
		}
		if l.Attrs().OperState == netlink.OperUp && usable(addrs) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("link %s in %s is still %v with addresses %v", name, n.Name, l.Attrs().OperState, addrs)
		}
		time.Sleep(time.Millisecond) // between two looks at a condition
	}
}

// usable reports whether there is a link-local address and none is tentative.
func usable(addrs []netlink.Addr) bool {
	local := false
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return false
		}
		local = local || a.IP.IsLinkLocalUnicast()
	}
	return local
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

// addRoute adds a route for a prefix through the link, with the gateway if that is valid.
func (n *Namespace) addRoute(l netlink.Link, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to)}
	if via.IsValid() {
		r.Gw = via.AsSlice()
		r.Flags = int(netlink.FLAG_ONLINK) // a pod's gateway is on no subnet
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

// hostPrefix is the prefix that holds one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
