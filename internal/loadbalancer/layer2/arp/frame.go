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
	hopLimit    = 255 // of neighbour discovery: what comes from elsewhere has less
	optSourceLL = 1
	optTargetLL = 2

	flagSolicited = 1 << 30
	flagOverride  = 1 << 29
)

var (
	broadcast = MAC{255, 255, 255, 255, 255, 255}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// A question is a packet that asks who has an address, or says so.
type question struct {
	from   MAC // who sent the frame
	to     MAC // whom it was sent to
	sender netip.Addr
	target netip.Addr
	// claim says that the packet says of an address, which is in sender, that it is at mac.
	claim bool
	mac   MAC
	ask   bool // somebody wants to know who has target
}

// parseFrame reads an Ethernet frame of ARP or of neighbour discovery; false: it is another.
func parseFrame(b []byte) (q question, ok bool) {
	if len(b) < 14 {
		return q, false
	}
	q.to, q.from = MAC(b[:6]), MAC(b[6:12])
	switch binary.BigEndian.Uint16(b[12:]) {
	case etherARP:
		return q.arp(b[14:])
	case etherIPv6:
		return q.ndp(b[14:])
	}
	return q, false
}

func (q question) arp(b []byte) (question, bool) {
	if len(b) < 28 || binary.BigEndian.Uint64(b)>>16 != 0x000108000604 {
		return q, false
	}
	q.mac = MAC(b[8:14])
	q.sender, q.target = netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	op := binary.BigEndian.Uint16(b[6:])
	q.claim = !q.sender.IsUnspecified()
	q.ask = op == arpRequest && q.sender != q.target // else it is gratuitous
	return q, op == arpRequest || op == arpReply
}

func (q question) ndp(b []byte) (question, bool) {
	if len(b) < 64 || b[6] != icmp6 || b[7] != hopLimit {
		return q, false
	}
	source, body := netip.AddrFrom16([16]byte(b[8:24])), b[40:]
	subject := netip.AddrFrom16([16]byte(body[8:24]))
	switch body[0] {
	case icmp6NS:
		q.sender, q.target, q.ask = source, subject, true
		return q, true
	case icmp6NA:
		q.sender, q.claim, q.mac = subject, true, q.from
		if o := body[24:]; len(o) >= 8 && o[0] == optTargetLL && o[1] == 1 {
			q.mac = MAC(o[2:8])
		}
		return q, true
	}
	return q, false
}

func ethernet(to, from MAC, proto uint16) []byte {
	b := make([]byte, 0, 86)
	b = append(b, to[:]...)
	b = append(b, from[:]...)
	return binary.BigEndian.AppendUint16(b, proto)
}

// arpFrame says (or asks, with the zero sender) who has an address.
func arpFrame(op uint16, to, mac MAC, sender netip.Addr, target MAC, targetIP netip.Addr) []byte {
	b := ethernet(to, mac, etherARP)
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	s, t := sender.As4(), targetIP.As4()
	b = append(b, mac[:]...)
	b = append(b, s[:]...)
	b = append(b, target[:]...)
	b = append(b, t[:]...)
	return append(b, make([]byte, 18)...) // the smallest frame of Ethernet
}

// ndpFrame is a neighbour advertisement or solicitation with one link-layer option; without
// one if the source is unspecified, as RFC 4861 asks.
func ndpFrame(kind byte, to, mac MAC, source, dest, subject netip.Addr, flags uint32) []byte {
	body := []byte{kind, 0, 0, 0}
	body = binary.BigEndian.AppendUint32(body, flags)
	body = append(body, subject.AsSlice()...)
	if kind == icmp6NA {
		body = append(append(body, optTargetLL, 1), mac[:]...)
	} else if !source.IsUnspecified() {
		body = append(append(body, optSourceLL, 1), mac[:]...)
	}
	binary.BigEndian.PutUint16(body[2:], checksum.Transport(source, dest, icmp6, body))
	b := ethernet(to, mac, etherIPv6)
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
	b = append(b, icmp6, hopLimit)
	b = append(b, source.AsSlice()...)
	b = append(b, dest.AsSlice()...)
	return append(b, body...)
}

// multicastMAC is the Ethernet address of an IPv6 multicast group.
func multicastMAC(group netip.Addr) MAC {
	b := group.As16()
	return MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// solicitedNode is the multicast group that is asked for an address.
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0xff, 0x02, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// reply answers a question for an address that is at mac. source is the interface's own
// address that an IPv6 answer comes from.
func reply(q question, mac MAC, source netip.Addr) []byte {
	if q.target.Is4() {
		return arpFrame(arpReply, q.from, mac, q.target, q.mac, q.sender)
	}
	if q.sender.IsUnspecified() { // somebody wants to take the address
		return ndpFrame(icmp6NA, multicastMAC(allNodes), mac, source, allNodes, q.target, flagOverride)
	}
	return ndpFrame(icmp6NA, q.from, mac, source, q.sender, q.target, flagSolicited|flagOverride)
}

// gratuitous says to all that an address is at mac, in both forms where there are two: some
// hosts heed only one of them.
func gratuitous(a netip.Addr, mac MAC, source netip.Addr) [][]byte {
	if a.Is4() {
		return [][]byte{
			arpFrame(arpRequest, broadcast, mac, a, MAC{}, a),
			arpFrame(arpReply, broadcast, mac, a, broadcast, a),
		}
	}
	return [][]byte{ndpFrame(icmp6NA, multicastMAC(allNodes), mac, source, allNodes, a, flagOverride)}
}

// probe asks whether somebody has an address, without saying that we do. An answer of IPv6 comes to source alone, if there is one, else
// to all.
func probe(a netip.Addr, mac MAC, source netip.Addr) []byte {
	if a.Is4() {
		return arpFrame(arpRequest, broadcast, mac, netip.IPv4Unspecified(), MAC{}, a)
	}
	if !source.IsValid() {
		source = netip.IPv6Unspecified()
	}
	group := solicitedNode(a)
	return ndpFrame(icmp6NS, multicastMAC(group), mac, source, group, a, 0)
}
