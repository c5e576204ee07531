package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// vxlanLink is the name of the device, egressLink that of the one inside of WireGuard. Names that begin with fw are
// pods' links.
const (
	vxlanLink  = "fairway-vxlan"
	egressLink = "fairway-egress"
)

// vnis are the numbers of their networks.
var vnis = map[string]int{vxlanLink: numbers.VNI, egressLink: numbers.VNIEgress}

// overhead is what the tunnel adds to a packet: headers of Ethernet, VXLAN, UDP and IP.
func overhead(local netip.Addr) int {
	if local.Is4() {
		return 14 + 8 + 8 + 20
	}
	return 14 + 8 + 8 + 40
}

// minMTU is IPv6's: a link below it carries none.
const minMTU = 1280

// A vxlanSync makes the kernel's device and its entries what a tunnel wants, in two steps: what
// is missing is there before the first route by it, and what is too much goes after the last one.
// Everything is read each time: other programs change it too.
type vxlanSync struct {
	handle netlinksafe.Handle
	name   string
	link   int // 0: there is none
	stale  []netlink.Neigh
}

// bring makes the device and adds what is missing.
func (s *vxlanSync) bring(t *tunnel) error {
	if !t.local.IsValid() {
		return errors.New("make the tunnel: this node has no InternalIP [has its Node object one? kubelet's --node-ip]")
	}
	below, err := uplink(s.handle, func(a netip.Addr) bool { return a == t.local })
	mtu := below - overhead(t.local)
	switch {
	case err != nil:
		return fmt.Errorf("make the tunnel: %w", err)
	case below == 0:
		return fmt.Errorf("make the tunnel: no link has this node's InternalIP %s [tunnels cannot begin behind an address translation; is kubelet's --node-ip right?]", t.local)
	case mtu < minMTU:
		return fmt.Errorf("make the tunnel: the link of %s has MTU %d, at least %d are needed", t.local, below, minMTU+overhead(t.local))
	}
	link, err := s.device(t, mtu)
	if err != nil {
		return fmt.Errorf("make the VXLAN device %s: %w", s.name, err)
	}
	s.link = link.Attrs().Index
	return errors.Join(syncAddrs(s.handle, link, t.addrs), s.syncForwarding(t), s.syncNeighbours(t))
}

// device returns the device as wanted. What the kernel cannot change makes it anew, without
// its routes.
func (s *vxlanSync) device(t *tunnel, mtu int) (netlink.Link, error) {
	link, err := findVXLAN(s.handle, s.name)
	if err != nil {
		return nil, err
	}
	want := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: s.name, MTU: mtu, HardwareAddr: t.mac[:], TxQLen: -1},
		VxlanId:   vnis[s.name], Port: numbers.PortVXLAN, SrcAddr: t.local.AsSlice(), Learning: false,
	}
	if link != nil && !sameVXLAN(link, want) {
		if err := s.handle.LinkDel(link); err != nil {
			return nil, fmt.Errorf("delete: %w", err)
		}
		link = nil
	}
	if link == nil {
		if err := s.handle.LinkAdd(want); errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("%w: another one has VNI %d at UDP port %d [ip -d link show type vxlan]", err, vnis[s.name], numbers.PortVXLAN)
		} else if err != nil {
			return nil, fmt.Errorf("%w [has the kernel CONFIG_VXLAN? modprobe vxlan]", err)
		}
		if link, err = findVXLAN(s.handle, s.name); err != nil || link == nil {
			return nil, errors.Join(errors.New("it has gone again"), err)
		}
	}
	return link, s.adjust(link, want)
}

// adjust sets what the kernel can change.
func (s *vxlanSync) adjust(have *netlink.Vxlan, want *netlink.Vxlan) error {
	if have.MTU != want.MTU {
		if err := s.handle.LinkSetMTU(have, want.MTU); err != nil {
			return fmt.Errorf("set its MTU to %d: %w", want.MTU, err)
		}
	}
	if have.HardwareAddr.String() != want.HardwareAddr.String() {
		if err := s.handle.LinkSetHardwareAddr(have, want.HardwareAddr); err != nil {
			return fmt.Errorf("set its MAC address: %w", err)
		}
	}
	return setUp(s.handle, have)
}

func sameVXLAN(have, want *netlink.Vxlan) bool {
	return have.VxlanId == want.VxlanId && have.Port == want.Port && have.SrcAddr.Equal(want.SrcAddr) &&
		!have.Learning && !have.FlowBased && !have.GBP && !have.L2miss && !have.L3miss && !have.Proxy && have.Group == nil
}

// findVXLAN returns our device of that name, or nil.
func findVXLAN(handle netlinksafe.Handle, name string) (*netlink.Vxlan, error) {
	link, err := handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find it: %w", err)
	}
	vxlan, ok := link.(*netlink.Vxlan)
	if !ok {
		return nil, fmt.Errorf("a link of that name is no VXLAN device but %s [delete it]", link.Type())
	}
	return vxlan, nil
}

// syncAddrs gives a tunnel's device its addresses, and takes others.
func syncAddrs(handle netlinksafe.Handle, link netlink.Link, addrs []netip.Addr) (failed error) {
	have, err := handle.AddrList(link, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("list the tunnel's addresses: %w", err)
	}
	want := map[netip.Addr]bool{}
	for _, addr := range addrs {
		want[addr] = true
	}
	for _, a := range have {
		addr, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if addr = addr.Unmap(); want[addr] && bits == addr.BitLen() {
			delete(want, addr)
		} else if err := handle.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			failed = errors.Join(failed, fmt.Errorf("delete address %s of the tunnel: %w", addr, err))
		}
	}
	for addr := range want {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}}
		if addr.Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := handle.AddrAdd(link, a); err != nil && !errors.Is(err, unix.EEXIST) {
			failed = errors.Join(failed, fmt.Errorf("add address %s to the tunnel: %w", addr, err))
		}
	}
	return failed
}

// syncForwarding writes which MAC address is behind which node.
func (s *vxlanSync) syncForwarding(t *tunnel) (failed error) {
	have, err := s.handle.NeighList(s.link, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("list the tunnel's forwarding entries: %w", err)
	}
	right := map[mac]bool{}
	for _, e := range have {
		remote, _ := netip.AddrFromSlice(e.IP)
		m, ok := macOf(e.HardwareAddr)
		if end, wanted := t.remotes[m]; ok && wanted {
			right[m] = end == remote.Unmap() && e.State&unix.NUD_PERMANENT != 0
		} else {
			s.stale = append(s.stale, e)
		}
	}
	for m, end := range t.remotes {
		if right[m] {
			continue
		}
		e := &netlink.Neigh{LinkIndex: s.link, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, State: unix.NUD_PERMANENT, HardwareAddr: m[:], IP: end.AsSlice()}
		if err := s.handle.NeighSet(e); err != nil {
			failed = errors.Join(failed, fmt.Errorf("set the tunnel's end %s: %w", end, err))
		}
	}
	return failed
}

// syncNeighbours writes which MAC address the gateways have.
func (s *vxlanSync) syncNeighbours(t *tunnel) (failed error) {
	right := map[netip.Addr]bool{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		have, err := s.handle.NeighList(s.link, family)
		if err != nil {
			return fmt.Errorf("list the tunnel's neighbours: %w", err)
		}
		for _, e := range have {
			addr, _ := netip.AddrFromSlice(e.IP)
			m, _ := macOf(e.HardwareAddr)
			if want, wanted := t.gateways[addr.Unmap()]; wanted {
				right[addr.Unmap()] = want == m && e.State&unix.NUD_PERMANENT != 0
			} else if e.State&unix.NUD_NOARP == 0 { // those are the kernel's, of multicast
				s.stale = append(s.stale, e)
			}
		}
	}
	for addr, m := range t.gateways {
		if right[addr] {
			continue
		}
		e := &netlink.Neigh{LinkIndex: s.link, State: unix.NUD_PERMANENT, HardwareAddr: m[:], IP: addr.AsSlice()}
		if err := s.handle.NeighSet(e); err != nil {
			failed = errors.Join(failed, fmt.Errorf("set the tunnel's neighbour %s: %w", addr, err))
		}
	}
	return failed
}

// tidy removes what no route needs any more: entries, or the device where no tunnel is wanted.
func (s *vxlanSync) tidy(t *tunnel) (failed error) {
	if t == nil {
		return removeVXLAN(s.handle, s.name)
	}
	for _, e := range s.stale {
		if err := s.handle.NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			failed = errors.Join(failed, fmt.Errorf("delete the tunnel's entry of %s: %w", e.IP, err))
		}
	}
	return failed
}

// removeVXLAN deletes our device of that name, if it is there. Another program's link stays.
func removeVXLAN(handle netlinksafe.Handle, name string) error {
	link, err := findVXLAN(handle, name)
	if link == nil || err != nil || link.VxlanId != vnis[name] {
		return nil
	}
	if err := handle.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the VXLAN device %s: %w", name, err)
	}
	return nil
}

func macOf(addr net.HardwareAddr) (m mac, ok bool) {
	ok = copy(m[:], addr) == len(m)
	return m, ok
}
