// Package checksum has the checksum of the Internet's headers (RFC 1071), for the few packets that we write by hand.
//
//	TCP, UDP, ICMPv6 ──→ Transport: with the addresses
//	IPv4, ICMP       ──→ Of
//
// It promises that the checksum of what has its own checksum in it is 0.
package checksum

import "net/netip"

// Of returns the checksum of bytes. Its field in them is 0.
func Of(b []byte) uint16 { return fold(sum(b)) }

// Transport returns the checksum of a TCP segment, a UDP datagram or an ICMPv6 message, over the pseudo header
// too. proto is the number that the IP header has.
func Transport(from, to netip.Addr, proto uint8, b []byte) uint16 {
	return fold(uint64(proto) + uint64(len(b)) + sum(from.AsSlice()) + sum(to.AsSlice()) + sum(b))
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

func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
