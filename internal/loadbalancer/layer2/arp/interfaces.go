package arp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Interface is a network interface on which addresses can be announced.
type Interface struct {
	Name string
	// Network says that the interface has an address of a network. An advertisement without interfaces is for all
	// interfaces with a network.
	Network bool
	// Connected says that the interface has a carrier.
	Connected bool
	// Reserved are the addresses of the interface's networks that no machine can have: the first and the last address of
	// an IPv4 network, and the first one of an IPv6 network, which all of its routers have.
	Reserved []netip.Addr
}

// A link is an Interface with the kernel's data.
type link struct {
	Interface
	index  int
	mac    MAC
	source netip.Addr // of our IPv6 packets; a link-local address if there is one
}

// equal reports whether two links are equal.
func (l link) equal(o link) bool {
	return l.Name == o.Name && l.Network == o.Network && l.Connected == o.Connected && slices.Equal(l.Reserved, o.Reserved) &&
		l.index == o.index && l.mac == o.mac && l.source == o.source
}

// podLinks matches names of interfaces that are not on a network of the node. It is MetalLB's list.
var podLinks = regexp.MustCompile(`^(docker.*|cbr.*|dummy.*|virbr.*|lxcbr.*|veth.*|lo|cali.*|tunl.*|flannel.*|kube-ipvs.*|cni.*|nodelocaldns.*|lxc.*|fw[0-9a-f].*)$`)

// links returns the interfaces that can announce: Ethernet, up, and not a member of a bridge.
func links() ([]link, error) {
	all, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	var out []link
	for _, l := range all {
		a := l.Attrs()
		const need, not = unix.IFF_UP | unix.IFF_BROADCAST, unix.IFF_LOOPBACK | unix.IFF_NOARP
		if a.RawFlags&need != need || a.RawFlags&not != 0 || len(a.HardwareAddr) != 6 || a.MasterIndex != 0 && !inVRF(all, a.MasterIndex) {
			continue
		}
		found := Interface{Name: a.Name, Connected: a.RawFlags&unix.IFF_LOWER_UP != 0}
		out = append(out, addressed(l, link{Interface: found, index: a.Index, mac: MAC(a.HardwareAddr)}))
	}
	return out, nil
}

// inVRF reports whether a master is a VRF. Members of a VRF can announce, members of a bridge cannot.
func inVRF(all []netlink.Link, master int) bool {
	for _, l := range all {
		if l.Attrs().Index == master {
			return l.Type() == "vrf"
		}
	}
	return false
}

// addressed sets Network and source by the interface's addresses.
func addressed(l netlink.Link, out link) link {
	addrs, err := netlink.AddrList(l, unix.AF_UNSPEC)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return out
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.Flags&unix.IFA_F_TENTATIVE != 0 {
			continue
		}
		ip = ip.Unmap()
		ones, bits := a.Mask.Size()
		if ip.IsGlobalUnicast() && ones < bits && !podLinks.MatchString(out.Name) {
			out.Network = true
		}
		if ip.IsGlobalUnicast() {
			out.Reserved = append(out.Reserved, reserved(netip.PrefixFrom(ip, ones))...)
		}
		if ip.Is6() && (!out.source.IsValid() || ip.IsLinkLocalUnicast()) {
			out.source = ip
		}
	}
	return out
}

// reserved returns the addresses of a network that no machine can have. A network of two addresses has none.
func reserved(network netip.Prefix) []netip.Addr {
	first := network.Masked().Addr()
	if network.Bits() >= first.BitLen()-1 {
		return nil
	}
	if first.Is6() {
		return []netip.Addr{first}
	}
	last := first.As4()
	for i := network.Bits(); i < 32; i++ {
		last[i/8] |= 1 << (7 - i%8)
	}
	return []netip.Addr{first, netip.AddrFrom4(last)}
}

// Wireless returns the interfaces that are wireless. Access points answer ARP for their stations, or drop unsolicited
// answers, so that announcements have no effect.
func Wireless(names []string) (out []string) {
	for _, name := range names {
		if all, err := filepath.Glob(filepath.Join("/sys/class/net", name, "phy80211")); err == nil && len(all) > 0 {
			out = append(out, name)
		} else if _, err := os.Stat(filepath.Join("/sys/class/net", name, "wireless")); err == nil {
			out = append(out, name)
		}
	}
	return out
}

// String returns a MAC in the form 02:00:5e:10:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }
