package node

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// datagramTo is an empty datagram to a port, with extension headers (IPv6, each with what follows it as its first byte)
// or options (IPv4) in front of it.
func datagramTo(port int, from, to netip.Addr, next byte, more []byte) []byte {
	p := emptyDatagram(from, to)
	head := 40
	if from.Is4() {
		head = 20
	}
	binary.BigEndian.PutUint16(p[head+2:], uint16(port))
	p = slices.Insert(p, head, more...)
	if len(more) == 0 {
		return p
	}
	if from.Is6() {
		p[4], p[5], p[6] = 0, byte(len(p)-40), next
		return p
	}
	p[0], p[3] = 0x40|byte(20+len(more))/4, byte(len(p))
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], checksum.Of(p[:20+len(more)]))
	return p
}

// tagged puts VLAN tags in front of a frame's payload: identifiers from the outermost on, 0 of priority only.
func tagged(to net.HardwareAddr, kind uint16, payload []byte, ids ...uint16) []byte {
	for i, id := range slices.Backward(ids) {
		payload = slices.Concat(binary.BigEndian.AppendUint16(nil, id), binary.BigEndian.AppendUint16(nil, kind), payload)
		if kind = unix.ETH_P_8021Q; i == 0 && len(ids) > 1 {
			kind = unix.ETH_P_8021AD
		}
	}
	return frame(to, kind, payload)
}

// advertisement is a router's (RFC 4861): it is the default router, and everybody has an address of 2001:db8:bad::/64.
func advertisement(from, to netip.Addr) []byte {
	body := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0}
	body = append(body, netip.MustParseAddr("2001:db8:bad::").AsSlice()...)
	binary.BigEndian.PutUint16(body[2:], checksum.Transport(from, to, unix.IPPROTO_ICMPV6, body))
	header := append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, 255}, from.AsSlice()...)
	return slices.Concat(header, to.AsSlice(), body)
}

// A hostile frame has a port of its own; comes: it is harmless, and the server gets it.
type hostile struct {
	name  string
	comes bool
	frame func(port int) []byte
}

// hostileFrames are what a pod may try beside plain packets with false addresses.
func hostileFrames(mac net.HardwareAddr, node, own, victim, server []netip.Addr) []hostile {
	every := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	v4 := func(from, to netip.Addr, options ...byte) func(int) []byte {
		return func(port int) []byte { return frame(mac, unix.ETH_P_IP, datagramTo(port, from, to, 0, options)) }
	}
	v6 := func(from, to netip.Addr, next byte, headers ...byte) func(int) []byte {
		return func(port int) []byte { return frame(mac, unix.ETH_P_IPV6, datagramTo(port, from, to, next, headers)) }
	}
	vlan := func(i int, from netip.Addr, ids ...uint16) func(int) []byte {
		kind := []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}[i]
		return func(port int) []byte { return tagged(mac, kind, datagramTo(port, from, server[i], 0, nil), ids...) }
	}
	record := []byte{7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	strict := slices.Concat([]byte{137, 7, 4}, victim[0].AsSlice(), []byte{0})
	alert := []byte{unix.IPPROTO_UDP, 0, 5, 2, 0, 0, 1, 0}
	type0 := slices.Concat([]byte{unix.IPPROTO_UDP, 2, 0, 1, 0, 0, 0, 0}, victim[1].AsSlice())
	segments := slices.Concat([]byte{unix.IPPROTO_UDP, 4, 4, 1, 1, 0, 0, 0}, victim[1].AsSlice(), node[1].AsSlice())
	all := []hostile{
		{"record route, false", false, v4(victim[0], server[0], record...)}, {"record route", true, v4(own[0], server[0], record...)},
		{"strict source route", false, v4(own[0], node[0], strict...)},
		{"hop-by-hop, false", false, v6(victim[1], server[1], 0, alert...)}, {"hop-by-hop", true, v6(own[1], server[1], 0, alert...)},
		{"destination options, false", false, v6(victim[1], server[1], unix.IPPROTO_DSTOPTS, unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0)},
		{"routing header 0", false, v6(own[1], node[1], unix.IPPROTO_ROUTING, type0...)},
		{"segment routing", false, v6(own[1], node[1], unix.IPPROTO_ROUTING, segments...)},
		{"DHCP server", false, func(port int) []byte {
			return frame(every, unix.ETH_P_IP, datagramTo(port, own[0], netip.AddrFrom4([4]byte(every[:4])), 0, nil))
		}},
		{"larger than the link", false, func(port int) []byte {
			p := append(datagramTo(port, own[0], server[0], 0, nil), make([]byte, 3000)...)
			binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
			binary.BigEndian.PutUint16(p[24:], uint16(len(p)-20))
			p[10], p[11] = 0, 0
			binary.BigEndian.PutUint16(p[10:], checksum.Of(p[:20]))
			return frame(mac, unix.ETH_P_IP, p)
		}},
	}
	for i := range own {
		all = append(all,
			hostile{"priority tag, false", false, vlan(i, victim[i], 0)}, hostile{"VLAN 5, false", false, vlan(i, victim[i], 5)}, hostile{"VLAN 5", false, vlan(i, own[i], 5)},
			hostile{"two priority tags, false", false, vlan(i, victim[i], 0, 0)}, hostile{"VLAN 5 in VLAN 6, false", false, vlan(i, victim[i], 6, 5)})
	}
	return append(all, hostile{"a plain one", true, v4(own[0], server[0])}, hostile{"a plain one", true, v6(own[1], server[1], unix.IPPROTO_UDP)})
}

// hears counts datagrams by port.
func (n *namespace) hears() {
	n.run("nft 'table inet seen { set ports { type inet_service; flags dynamic; size 256; }; chain in { type filter hook prerouting priority raw; udp dport 5000-5999 update @ports { udp dport }; }; }'")
}

func (n *namespace) heard(port int) bool {
	return strings.Contains(n.run("nft list set inet seen ports"), fmt.Sprint(port))
}

// TestHostileFrames: tags of VLANs, options, extension headers and sizes take no false packet past the check, and no packet
// to where the node did not route it; a pod is neither a router nor a DHCP server to anybody. Not even where the administrator's settings
// for all links allow it.
func TestHostileFrames(t *testing.T) {
	c := newCluster(t, 1, dual)
	c.sync()
	m := c.machines[0]
	m.run("cd /proc/sys/net; for i in all default; do echo 1 > ipv4/conf/$i/accept_source_route; for f in accept_source_route seg6_enabled; do echo 1 > ipv6/conf/$i/$f; done; echo 2 > ipv6/conf/$i/accept_ra; done")
	attacker, victim, server := m.newPod(), m.newPod(), m.newPod()
	for _, n := range []*namespace{victim.namespace, server.namespace} {
		n.hears()
	}
	attacker.run("ip link set eth0 mtu 9000")
	_, mac := m.linkTo(attacker)
	state := func() string {
		return m.run("ip -6 route show | grep -v ' dev fw'; ip -6 addr show dynamic; ip -6 route show proto ra") + victim.run("ip -6 route; ip -6 addr show scope global")
	}
	before := state()
	try := func(base int) {
		t.Helper()
		var frames [][]byte
		for _, from := range []netip.Addr{netip.MustParseAddr("fe80::bb"), netip.MustParseAddr("fe80::1"), attacker.addrs[1]} {
			for _, to := range []netip.Addr{netip.MustParseAddr("ff02::1"), m.peer.Addrs[1], victim.addrs[1]} {
				frames = append(frames, frame(mac, unix.ETH_P_IPV6, advertisement(from, to)))
			}
		}
		all := hostileFrames(mac, m.peer.Addrs, attacker.addrs, victim.addrs, server.addrs)
		for i, h := range all {
			frames = append(frames, h.frame(base+i))
		}
		attacker.send(frames)
		for i, h := range all {
			if h.comes {
				eventually(t, h.name+" comes", func() bool { return server.heard(base + i) })
			}
		}
		for i, h := range all {
			if !h.comes && server.heard(base+i) || victim.heard(base+i) {
				t.Errorf("%s came", h.name)
			}
		}
		if now := state(); now != before {
			t.Errorf("before:\n%s\nnow:\n%s", before, now)
		}
	}
	try(5000)
	// An address that the pod has taken off its link stays its own until CNI DEL, and nobody else's.
	for _, own := range attacker.addrs {
		attacker.run(fmt.Sprintf("ip addr del %s dev eth0", netip.PrefixFrom(own, own.BitLen())))
	}
	try(5500)
	if next := m.newPod(); slices.Contains(attacker.addrs, next.addrs[0]) || slices.Contains(attacker.addrs, next.addrs[1]) {
		t.Errorf("another pod has %v", next.addrs)
	}
}
