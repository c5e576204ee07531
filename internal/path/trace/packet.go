package trace

import (
	"encoding/binary"
	"net/netip"
)

// ParsePacket reads an IP header, and the begin of the header behind it. transport may be empty.
func ParsePacket(network, transport []byte) (p Packet, ok bool) {
	if len(network) < 1 {
		return p, false
	}
	var src, dst netip.Addr
	switch network[0] >> 4 {
	case 4:
		if len(network) < 20 {
			return p, false
		}
		src, dst = netip.AddrFrom4([4]byte(network[12:16])), netip.AddrFrom4([4]byte(network[16:20]))
		p.Proto, p.TTL, p.DSCP = network[9], network[8], network[1]>>2
		p.ID, p.Size = binary.BigEndian.Uint16(network[4:]), int(binary.BigEndian.Uint16(network[2:]))
	case 6:
		if len(network) < 40 {
			return p, false
		}
		src, dst = netip.AddrFrom16([16]byte(network[8:24])), netip.AddrFrom16([16]byte(network[24:40]))
		p.Proto, p.TTL, p.DSCP = network[6], network[7], uint8(binary.BigEndian.Uint16(network)>>6&0x3f)
		p.Size = 40 + int(binary.BigEndian.Uint16(network[4:]))
	default:
		return p, false
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
	if (p.Proto == tcp || p.Proto == udp) && len(transport) >= 4 {
		p.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(transport))
		p.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(transport[2:]))
	}
	if p.Proto == tcp && len(transport) >= 14 {
		p.Seq, p.Flags = binary.BigEndian.Uint32(transport[4:]), tcpFlags(transport[13])
	}
	return p, true
}

// tcpFlags returns "SYN", "SYN,ACK" and so on.
func tcpFlags(b byte) (text string) {
	for i, name := range [...]string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if b&(1<<i) == 0 {
			continue
		}
		if text != "" {
			text += ","
		}
		text += name
	}
	return text
}
