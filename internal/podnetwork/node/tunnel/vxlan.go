package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// VXLANLink is the name of the device, and EgressLink the name of the device inside of WireGuard. Names that begin with
// fw are for pods' links.
const (
	VXLANLink  = "fairway-vxlan"
	EgressLink = "fairway-egress"
)

// vnis are the VXLAN network identifiers of the devices.
var vnis = map[string]int{VXLANLink: numbers.VNI, EgressLink: numbers.VNIEgress}

// Overhead returns the bytes that the tunnel adds to a packet: headers of Ethernet, VXLAN, UDP and IP.
func Overhead(local netip.Addr) int {
	if local.Is4() {
		return 14 + 8 + 8 + 20
	}
	return 14 + 8 + 8 + 40
}

// minMTU is the minimum of IPv6: a link below it carries no IPv6 packets.
const minMTU = 1280

// A VXLAN makes the kernel's device and its entries what a plan.Tunnel wants, in two steps. Bring adds before the first
// route by the device, Tidy removes after the last one.
type VXLAN struct {
	handle netlinksafe.Handle
	name   string
	Link   int // 0: there is none
	stale  []netlink.Neigh
}

// NewVXLAN returns the device of a name, VXLANLink or EgressLink. It does not touch the kernel.
func NewVXLAN(handle netlinksafe.Handle, name string) VXLAN {
	return VXLAN{handle: handle, name: name}
}

// Bring makes the device and adds the missing entries.
func (s *VXLAN) Bring(t *plan.Tunnel) error {
	if !t.Local.IsValid() {
		return errors.New("make the tunnel: this node has no InternalIP [has its Node object one? kubelet's --node-ip]")
	}
	below, err := Uplink(s.handle, func(a netip.Addr) bool { return a == t.Local })
	mtu := below - Overhead(t.Local)
	switch {
	case err != nil:
		return fmt.Errorf("make the tunnel: %w", err)
	case below == 0:
		return fmt.Errorf("make the tunnel: no link has this node's InternalIP %s [tunnels cannot begin behind an address translation; is kubelet's --node-ip right?]", t.Local)
	case mtu < minMTU:
		return fmt.Errorf("make the tunnel: the link of %s has MTU %d, at least %d are needed", t.Local, below, minMTU+Overhead(t.Local))
	}
	link, err := s.device(t, mtu)
	if err != nil {
		return fmt.Errorf("make the VXLAN device %s: %w", s.name, err)
	}
	s.Link = link.Attrs().Index
	return errors.Join(syncAddrs(s.handle, link, t.Addrs), s.syncForwarding(t), s.syncNeighbours(t))
}

// device returns the device with the wanted settings. If the kernel cannot change a setting, it makes a new device,
// which has no routes.
func (s *VXLAN) device(t *plan.Tunnel, mtu int) (netlink.Link, error) {
	link, err := FindVXLAN(s.handle, s.name)
	if err != nil {
		return nil, err
	}
	want := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: s.name, MTU: mtu, HardwareAddr: t.MAC[:], TxQLen: -1},
		VxlanId:   vnis[s.name], Port: numbers.PortVXLAN, SrcAddr: t.Local.AsSlice(), Learning: false,
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
		if link, err = FindVXLAN(s.handle, s.name); err != nil || link == nil {
			return nil, errors.Join(errors.New("it has gone again"), err)
		}
	}
	return link, s.adjust(link, want)
}

// adjust changes the settings that the kernel can change.
func (s *VXLAN) adjust(have *netlink.Vxlan, want *netlink.Vxlan) error {
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

// FindVXLAN returns our device of a name, or nil if there is no link of that name.
func FindVXLAN(handle netlinksafe.Handle, name string) (*netlink.Vxlan, error) {
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

// syncAddrs adds a device's missing addresses, and removes all others.
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

// syncForwarding writes the FDB: the node behind each MAC address.
func (s *VXLAN) syncForwarding(t *plan.Tunnel) (failed error) {
	have, err := s.handle.NeighList(s.Link, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("list the tunnel's forwarding entries: %w", err)
	}
	right := map[plan.MAC]bool{}
	for _, e := range have {
		remote, _ := netip.AddrFromSlice(e.IP)
		m, ok := macOf(e.HardwareAddr)
		if end, wanted := t.Remotes[m]; ok && wanted {
			right[m] = end == remote.Unmap() && e.State&unix.NUD_PERMANENT != 0
		} else {
			s.stale = append(s.stale, e)
		}
	}
	for m, end := range t.Remotes {
		if right[m] {
			continue
		}
		e := &netlink.Neigh{LinkIndex: s.Link, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, State: unix.NUD_PERMANENT, HardwareAddr: m[:], IP: end.AsSlice()}
		if err := s.handle.NeighSet(e); err != nil {
			failed = errors.Join(failed, fmt.Errorf("set the tunnel's end %s: %w", end, err))
		}
	}
	return failed
}

// syncNeighbours writes the MAC addresses of the gateways.
func (s *VXLAN) syncNeighbours(t *plan.Tunnel) (failed error) {
	right := map[netip.Addr]bool{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		have, err := s.handle.NeighList(s.Link, family)
		if err != nil {
			return fmt.Errorf("list the tunnel's neighbours: %w", err)
		}
		for _, e := range have {
			addr, _ := netip.AddrFromSlice(e.IP)
			m, _ := macOf(e.HardwareAddr)
			if want, wanted := t.Gateways[addr.Unmap()]; wanted {
				right[addr.Unmap()] = want == m && e.State&unix.NUD_PERMANENT != 0
			} else if e.State&unix.NUD_NOARP == 0 { // the kernel's own entries for multicast
				s.stale = append(s.stale, e)
			}
		}
	}
	for addr, m := range t.Gateways {
		if right[addr] {
			continue
		}
		e := &netlink.Neigh{LinkIndex: s.Link, State: unix.NUD_PERMANENT, HardwareAddr: m[:], IP: addr.AsSlice()}
		if err := s.handle.NeighSet(e); err != nil {
			failed = errors.Join(failed, fmt.Errorf("set the tunnel's neighbour %s: %w", addr, err))
		}
	}
	return failed
}

// Tidy removes the stale entries, or the device if t is nil.
func (s *VXLAN) Tidy(t *plan.Tunnel) (failed error) {
	if t == nil {
		return RemoveVXLAN(s.handle, s.name)
	}
	for _, e := range s.stale {
		if err := s.handle.NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			failed = errors.Join(failed, fmt.Errorf("delete the tunnel's entry of %s: %w", e.IP, err))
		}
	}
	return failed
}

// IsOurs reports whether a device has our VXLAN network identifier.
func IsOurs(link *netlink.Vxlan) bool { return link.VxlanId == vnis[link.Attrs().Name] }

// RemoveVXLAN deletes our device of a name, if it is there. Another program's link of that name stays.
func RemoveVXLAN(handle netlinksafe.Handle, name string) error {
	link, err := FindVXLAN(handle, name)
	if link == nil || err != nil || !IsOurs(link) {
		return nil
	}
	if err := handle.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the VXLAN device %s: %w", name, err)
	}
	return nil
}

func macOf(addr net.HardwareAddr) (m plan.MAC, ok bool) {
	ok = copy(m[:], addr) == len(m)
	return m, ok
}
