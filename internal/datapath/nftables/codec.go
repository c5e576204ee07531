package nftables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/service"
)

// Keys and data of elements, as the kernel keeps them: each field of a concatenation
// in network order, padded to four bytes; numbers that are no packet fields (slots,
// hows) in the byte order of the machine.

// frontKey is the key of a frontend's element.
func frontKey(k service.Key) []byte {
	var b []byte
	if !k.Addr.Addr().IsUnspecified() {
		b = k.Addr.Addr().AsSlice()
	}
	return portKey(append(b, byte(k.Proto), 0, 0, 0), k.Addr.Port())
}

func portKey(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// slotKey is the key of an endpoint's element.
func slotKey(front []byte, slot uint32) []byte {
	return binary.NativeEndian.AppendUint32(append(make([]byte, 0, len(front)+4), front...), slot)
}

// endpointData is the data of an endpoint's element.
func endpointData(a netip.AddrPort) []byte { return portKey(a.Addr().AsSlice(), a.Port()) }

func howData(h how) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(h)) }

// parseHow is the inverse of howData.
func parseHow(b []byte) (how, error) {
	if len(b) < 4 {
		return 0, fmt.Errorf("how has %d bytes", len(b))
	}
	return how(binary.NativeEndian.Uint32(b)), nil
}

// parseFrontKey is the inverse of frontKey. nodePort tells which kind of map it is from.
func parseFrontKey(b []byte, is4, nodePort bool) (service.Key, error) {
	size := addrSize(is4)
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
		Proto: service.Proto(b[size]),
	}, nil
}

// parseSlotKey is the inverse of slotKey.
func parseSlotKey(b []byte, is4, nodePort bool) (service.Key, uint32, error) {
	if len(b) < 4 {
		return service.Key{}, 0, fmt.Errorf("slot key has %d bytes", len(b))
	}
	k, err := parseFrontKey(b[:len(b)-4], is4, nodePort)
	return k, binary.NativeEndian.Uint32(b[len(b)-4:]), err
}

// parseEndpoint is the inverse of endpointData.
func parseEndpoint(b []byte, is4 bool) (netip.AddrPort, error) {
	size := addrSize(is4)
	if len(b) < size+2 {
		return netip.AddrPort{}, fmt.Errorf("endpoint has %d bytes", len(b))
	}
	addr, _ := netip.AddrFromSlice(b[:size])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[size:])), nil
}

func addrSize(is4 bool) int {
	if is4 {
		return 4
	}
	return 16
}

// ranges returns the prefixes of one family as sorted ranges that do not touch, the
// form in which an interval set takes them.
func ranges(all []netip.Prefix, is4 bool) []netipx.IPRange {
	var b netipx.IPSetBuilder
	for _, p := range all {
		if p.IsValid() && p.Addr().Is4() == is4 {
			b.AddPrefix(p)
		}
	}
	s, err := b.IPSet()
	if err != nil {
		return nil // only invalid prefixes make an error, and those are left out
	}
	return s.Ranges()
}

// toPrefixes returns the prefixes that make up a range.
func toPrefixes(from, to netip.Addr) []netip.Prefix {
	return netipx.IPRangeFrom(from, to).Prefixes()
}

// lastAddr is the highest address of a family: an interval without an end reaches it.
func lastAddr(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	var b [16]byte
	for i := range b {
		b[i] = 255
	}
	return netip.AddrFrom16(b)
}

// linkRange returns the names of interfaces that a pattern stands for, as an interval of
// sixteen bytes: from the first name to behind the last.
func linkRange(pattern string) (from, end []byte) {
	from, end = make([]byte, unix.IFNAMSIZ), make([]byte, unix.IFNAMSIZ)
	name, many := strings.CutSuffix(pattern, "*")
	n := copy(from, name)
	copy(end, from)
	last := unix.IFNAMSIZ - 1 // one name only: up to the next possible one
	if many && n > 0 {
		last = n - 1
	}
	end[last]++
	return from, end
}

// parseLinkRange is the inverse of linkRange.
func parseLinkRange(from, end []byte) string {
	name := string(bytes.TrimRight(from, "\x00"))
	if len(end) > 0 && end[len(end)-1] == 0 {
		return name + "*"
	}
	return name
}
