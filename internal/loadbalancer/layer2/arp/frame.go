package arp

import (
	"encoding/binary"
	"net/netip"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// A MAC is an Ethernet address.
type MAC [6]byte

const (
	etherARP  = 0x0806
	etherIPv6 = 0x86dd

	arpRequest = 1
	arpReply   = 2

	icmp6       = 58
	icmp6NS     = 135
	icmp6NA     = 136
	hopLimit    = 255 // of neighbour discovery; packets through a router have less
	optSourceLL = 1
	optTargetLL = 2

	flagSolicited = 1 << 30
	flagOverride  = 1 << 29
)

var (
	broadcast = MAC{255, 255, 255, 255, 255, 255}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// A message is a packet of ARP or of neighbour discovery: a request, a claim, or both.
type message struct {
	from   MAC // the frame's source
	sender netip.Addr
	target netip.Addr
	// isClaim says that the packet claims the address sender for mac.
	isClaim bool
	mac     MAC
	// isRequest says that the packet asks for the MAC of target.
	isRequest bool
}

// parseFrame reads an Ethernet frame; false: it is neither ARP nor neighbour discovery.
func parseFrame(b []byte) (m message, ok bool) {
	if len(b) < 14 {
		return m, false
	}
	m.from = MAC(b[6:12])
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherARP:
		return m.arp(b[14:])
	case etherIPv6:
		return m.ndp(b[14:])
	}
	return m, false
}

// arp reads the payload of an ARP frame.
func (m message) arp(b []byte) (message, bool) {
	if len(b) < 28 || binary.BigEndian.Uint64(b)>>16 != 0x000108000604 {
		return m, false
	}
	m.mac = MAC(b[8:14])
	m.sender, m.target = netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	op := binary.BigEndian.Uint16(b[6:])
	m.isClaim = !m.sender.IsUnspecified()
	m.isRequest = op == arpRequest && m.sender != m.target // a request for the sender itself is gratuitous
	return m, op == arpRequest || op == arpReply
}

// ndp reads the payload of an IPv6 frame.
func (m message) ndp(b []byte) (message, bool) {
	if len(b) < 64 || b[6] != icmp6 || b[7] != hopLimit {
		return m, false
	}
	source, body := netip.AddrFrom16([16]byte(b[8:24])), b[40:]
	subject := netip.AddrFrom16([16]byte(body[8:24]))
	switch body[0] {
	case icmp6NS:
		m.sender, m.target, m.isRequest = source, subject, true
		return m, true
	case icmp6NA:
		m.sender, m.isClaim, m.mac = subject, true, m.from
		if o := body[24:]; len(o) >= 8 && o[0] == optTargetLL && o[1] == 1 {
			m.mac = MAC(o[2:8])
		}
		return m, true
	}
	return m, false
}

// ethernet returns the header of a frame.
func ethernet(to, from MAC, proto uint16) []byte {
	b := make([]byte, 0, 86)
	b = append(b, to[:]...)
	b = append(b, from[:]...)
	return binary.BigEndian.AppendUint16(b, proto)
}

// arpFrame returns an ARP frame. The zero sender makes a request without a claim.
func arpFrame(op uint16, to, mac MAC, sender netip.Addr, target MAC, targetIP netip.Addr) []byte {
	b := ethernet(to, mac, etherARP)
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	s, t := sender.As4(), targetIP.As4()
	b = append(b, mac[:]...)
	b = append(b, s[:]...)
	b = append(b, target[:]...)
	b = append(b, t[:]...)
	return append(b, make([]byte, 18)...) // to Ethernet's smallest size
}

// ndpFrame returns a neighbour advertisement or solicitation with one link-layer option. An unspecified source has no
// option, as RFC 4861 asks.
func ndpFrame(kind byte, to, mac MAC, source, dst, subject netip.Addr, flags uint32) []byte {
	body := []byte{kind, 0, 0, 0}
	body = binary.BigEndian.AppendUint32(body, flags)
	body = append(body, subject.AsSlice()...)
	if kind == icmp6NA {
		body = append(append(body, optTargetLL, 1), mac[:]...)
	} else if !source.IsUnspecified() {
		body = append(append(body, optSourceLL, 1), mac[:]...)
	}
	binary.BigEndian.PutUint16(body[2:], checksum.Transport(source, dst, icmp6, body))
	b := ethernet(to, mac, etherIPv6)
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	b = append(b, icmp6, hopLimit)
	b = append(b, source.AsSlice()...)
	b = append(b, dst.AsSlice()...)
	return append(b, body...)
}

// multicastMAC returns the Ethernet address of an IPv6 multicast group.
func multicastMAC(group netip.Addr) MAC {
	b := group.As16()
	return MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// solicitedNode returns the multicast group that receives solicitations for an address.
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0xff, 0x02, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// reply answers a request with mac. source is the interface's own address, from which IPv6 answers come.
func reply(m message, mac MAC, source netip.Addr) []byte {
	if m.target.Is4() {
		return arpFrame(arpReply, m.from, mac, m.target, m.mac, m.sender)
	}
	if m.sender.IsUnspecified() { // another machine wants to take the address
		return ndpFrame(icmp6NA, multicastMAC(allNodes), mac, source, allNodes, m.target, flagOverride)
	}
	return ndpFrame(icmp6NA, m.from, mac, source, m.sender, m.target, flagSolicited|flagOverride)
}

// gratuitous returns the frames that tell all machines the MAC of an address. ARP has two forms, and some hosts heed
// only one of them.
func gratuitous(a netip.Addr, mac MAC, source netip.Addr) [][]byte {
	if a.Is4() {
		return [][]byte{
			arpFrame(arpRequest, broadcast, mac, a, MAC{}, a),
			arpFrame(arpReply, broadcast, mac, a, broadcast, a),
		}
	}
	return [][]byte{ndpFrame(icmp6NA, multicastMAC(allNodes), mac, source, allNodes, a, flagOverride)}
}

// probe returns a request for an address without a claim. All machines receive an IPv6 answer.
func probe(a netip.Addr, mac MAC) []byte {
	if a.Is4() {
		return arpFrame(arpRequest, broadcast, mac, netip.IPv4Unspecified(), MAC{}, a)
	}
	group := solicitedNode(a)
	return ndpFrame(icmp6NS, multicastMAC(group), mac, netip.IPv6Unspecified(), group, a, 0)
}
