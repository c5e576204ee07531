// Package checksum computes the Internet checksum (RFC 1071), for the few packets that Fairway builds itself.
//
//	TCP, UDP, ICMPv6 ──→ Transport, which includes the addresses
//	IPv4, ICMP       ──→ Of
//
// The checksum of bytes that contain their own checksum is 0.
package checksum

import "net/netip"

// Of returns the checksum of b. The caller sets the checksum field in b to 0 before.
func Of(b []byte) uint16 { return fold(sum(b)) }

// Transport returns the checksum of a TCP segment, a UDP datagram or an ICMPv6 message. It includes the pseudo header.
// proto is the protocol number in the IP header.
func Transport(src, dst netip.Addr, proto uint8, b []byte) uint16 {
	return fold(uint64(proto) + uint64(len(b)) + sum(src.AsSlice()) + sum(dst.AsSlice()) + sum(b))
}

// sum adds up words of 16 bits. A last odd byte is the upper half of a word.
func sum(b []byte) (total uint64) {
	for ; len(b) > 1; b = b[2:] {
		total += uint64(b[0])<<8 | uint64(b[1])
	}
	if len(b) == 1 {
		total += uint64(b[0]) << 8
	}
	return total
}

// fold adds the carries of a sum and returns its complement.
func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
