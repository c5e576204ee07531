package arp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Interface is a network interface on which addresses can be announced.
type Interface struct {
	Name string
	// Network says that the interface has an address of a network. Such interfaces announce addresses whose
	// advertisement names no interface.
	Network bool
	// Connected says that the interface has a carrier.
	Connected bool
}

// A link is an Interface with the kernel's data.
type link struct {
	Interface
	index  int
	mac    MAC
	source netip.Addr // of our IPv6 packets; link-local if the interface has such an address
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
		one := Interface{Name: a.Name, Connected: a.RawFlags&unix.IFF_LOWER_UP != 0}
		out = append(out, addressed(l, link{Interface: one, index: a.Index, mac: MAC(a.HardwareAddr)}))
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
		if ip.Is6() && (!out.source.IsValid() || ip.IsLinkLocalUnicast()) {
			out.source = ip
		}
	}
	return out
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
