package nftset

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// The kernel stores keys and data of elements like this: each field of a concatenation is in network byte order and
// padded to four bytes. Numbers that are not packet fields (slots, verdict IDs, weights) are in host byte order.

// FrontendKey returns the key of a frontend's element: address . protocol . port, or protocol . port for a NodePort.
func FrontendKey(k service.Key) []byte {
	b := make([]byte, 0, 24)
	switch a := k.Addr.Addr(); {
	case a.IsUnspecified():
	case a.Is4():
		raw := a.As4()
		b = append(b, raw[:]...)
	default:
		raw := a.As16()
		b = append(b, raw[:]...)
	}
	return appendPort(append(b, byte(k.Proto), 0, 0, 0), k.Addr.Port())
}

// ParseFrontendKey is the inverse of FrontendKey. nodePort says whether the key is from a map of NodePorts.
func ParseFrontendKey(b []byte, is4, nodePort bool) (service.Key, error) {
	size := AddrSize(is4)
	addr := netip.IPv6Unspecified()
	if is4 {
		addr = netip.IPv4Unspecified()
	}
	if nodePort {
		size = 0
	}
	if len(b) != size+8 {
		return service.Key{}, fmt.Errorf("frontend key has %d bytes, want %d", len(b), size+8)
	}
	if !nodePort {
		addr, _ = netip.AddrFromSlice(b[:size])
	}
	return service.Key{
		Addr:  netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[size+4:])),
		Proto: api.Proto(b[size]),
	}, nil
}

// AddrPort returns address . port: the data of an endpoint's element.
func AddrPort(a netip.AddrPort) []byte { return appendPort(a.Addr().AsSlice(), a.Port()) }

// ParseAddrPort is the inverse of AddrPort. rest has the bytes behind the port.
func ParseAddrPort(b []byte, is4 bool) (a netip.AddrPort, rest []byte, err error) {
	size := AddrSize(is4)
	if len(b) < size+2 {
		return a, nil, fmt.Errorf("address and port have %d bytes", len(b))
	}
	addr, _ := netip.AddrFromSlice(b[:size])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[size:])), b[min(size+4, len(b)):], nil
}

func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// Number returns the bytes of a number that is not a packet field.
func Number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// ParseNumber is the inverse of Number.
func ParseNumber(b []byte) (uint32, error) {
	if len(b) < 4 {
		return 0, fmt.Errorf("number has %d bytes", len(b))
	}
	return binary.NativeEndian.Uint32(b), nil
}

// HairpinKey returns address . address: a packet from an endpoint to itself.
func HairpinKey(a netip.Addr) []byte { return append(a.AsSlice(), a.AsSlice()...) }

// AddrSize returns the size of an address in bytes.
func AddrSize(is4 bool) int {
	if is4 {
		return 4
	}
	return 16
}
