package probe

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// packet returns the IP packet of a probe: a TCP SYN, or a datagram.
func packet(o trace.Order, client netip.AddrPort) []byte {
	transport := segment(client, o.To)
	if o.Proto != tcp {
		content, _ := payload(o)
		transport = datagram(client, o.To, content)
	}
	src, dst := client.Addr(), o.To.Addr()
	if src.Is6() {
		b := make([]byte, 40, 40+len(transport))
		binary.BigEndian.PutUint32(b, 6<<28|uint32(o.Tag)<<22)
		binary.BigEndian.PutUint16(b[4:], uint16(len(transport)))
		b[6], b[7] = o.Proto, 64
		copy(b[8:], src.AsSlice())
		copy(b[24:], dst.AsSlice())
		return append(b, transport...)
	}
	b := make([]byte, 20, 20+len(transport))
	b[0], b[1] = 0x45, o.Tag<<2
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(transport)))
	binary.BigEndian.PutUint16(b[4:], uint16(rand.Uint32()))
	binary.BigEndian.PutUint16(b[6:], 1<<14) // don't fragment
	b[8], b[9] = 64, o.Proto
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum.Of(b))
	return append(b, transport...)
}

// segment returns a SYN with a maximum segment size.
func segment(src, dst netip.AddrPort) []byte {
	b := make([]byte, 24)
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint32(b[4:], rand.Uint32())
	b[12], b[13] = 6<<4, 2
	binary.BigEndian.PutUint16(b[14:], 64240)
	copy(b[20:], []byte{2, 4, 0x04, 0xd8}) // 1240 bytes fit every link
	binary.BigEndian.PutUint16(b[16:], checksum.Transport(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, b))
	return b
}

func datagram(src, dst netip.AddrPort, content []byte) []byte {
	b := append(make([]byte, 8, 8+len(content)), content...)
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[6:], max(1, checksum.Transport(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, b)))
	return b
}

// answer says what a packet to the client tells it. ok is false if the packet does not concern the probe.
func answer(ip []byte, o trace.Order, client netip.AddrPort) (h trace.Heard, ok bool) {
	network, transport, ok := split(ip)
	if !ok {
		return h, false
	}
	p, ok := trace.ParsePacket(network, transport)
	switch {
	case !ok || p.Dst.Addr() != client.Addr():
		return h, false
	case p.Proto == unix.IPPROTO_ICMP || p.Proto == unix.IPPROTO_ICMPV6:
		return icmpError(transport, p, o, client)
	case p.Proto != o.Proto || p.Src != o.To || p.Dst != client:
		return h, false
	}
	switch {
	case p.Proto != tcp:
		h.Outcome = trace.Answered
		if o.Send.Name != "" && len(transport) > 8 {
			h.Answer = describe(transport[8:], 0)
		}
	case p.Flags == "SYN,ACK":
		h.Outcome = trace.Answered
	case p.Flags == "RST,ACK" || p.Flags == "RST":
		h.Outcome, h.Error = trace.Refused, unix.ECONNREFUSED.Error()
	default:
		return h, false
	}
	return h, true
}

// split returns the IP header and what follows it.
func split(ip []byte) (network, transport []byte, ok bool) {
	n := 40
	if len(ip) > 0 && ip[0]>>4 == 4 {
		n = int(ip[0]&0xf) * 4
	}
	if len(ip) < n || n < 20 {
		return nil, nil, false
	}
	return ip[:n], ip[n:], true
}

// icmpError reads an ICMP error, and compares the packet inside with the probe.
func icmpError(b []byte, p trace.Packet, o trace.Order, client netip.AddrPort) (h trace.Heard, ok bool) {
	if len(b) < 8 {
		return h, false
	}
	network, transport, ok := split(b[8:])
	if !ok {
		return h, false
	}
	inner, ok := trace.ParsePacket(network, transport)
	if !ok || inner.Src != client || inner.Dst != o.To {
		return h, false
	}
	h.From, h.ICMP, h.Outcome = p.Src.Addr(), icmpText(b[0], b[1]), trace.Unreachable
	is4 := client.Addr().Is4()
	switch typ, code := b[0], b[1]; {
	case is4 && typ == 3 && code == 3, !is4 && typ == 1 && code == 4:
		h.Outcome = trace.Refused
	case is4 && typ == 3 && code == 4:
		h.Outcome, h.MTU = trace.TooBig, int(binary.BigEndian.Uint16(b[6:]))
	case !is4 && typ == 2:
		h.Outcome, h.MTU = trace.TooBig, int(binary.BigEndian.Uint32(b[4:]))
	}
	return h, true
}
