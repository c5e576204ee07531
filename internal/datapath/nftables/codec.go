package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/service"
)

// Keys and data of elements, as the kernel stores them: each field of a concatenation is
// in network byte order, padded to four bytes; numbers that are not packet fields (slots,
// verdict IDs) are in host byte order.

// frontendKey is the key of a frontend's element.
func frontendKey(k service.Key) []byte {
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

func verdictData(h verdictID) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(h)) }

// parseVerdict is the inverse of verdictData.
func parseVerdict(b []byte) (verdictID, error) {
	if len(b) < 4 {
		return 0, fmt.Errorf("verdict ID has %d bytes", len(b))
	}
	return verdictID(binary.NativeEndian.Uint32(b)), nil
}

// parseFrontendKey is the inverse of frontendKey. nodePort says which kind of map the key is from.
func parseFrontendKey(b []byte, is4, nodePort bool) (service.Key, error) {
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
	k, err := parseFrontendKey(b[:len(b)-4], is4, nodePort)
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

// comment is the comment of a frontend's element: its Service port, and the algorithm
// unless it is random.
func (h *frontendState) comment() string {
	if h.balance == service.Random {
		return h.name
	}
	return h.name + " " + h.balance.String()
}

// parseComment is the inverse of frontendState.comment.
func (h *frontendState) parseComment(text string) (err error) {
	name, balance, has := strings.Cut(text, " ")
	h.name = name
	if has {
		h.balance, err = service.ParseAlgorithm(balance)
	}
	return err
}

// weightComment is the comment of an endpoint's element: its weight, if it has one.
func weightComment(w uint16) string {
	if w == 0 {
		return ""
	}
	return "weight " + strconv.Itoa(int(w))
}

// parseWeight is the inverse of weightComment.
func parseWeight(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	w, err := strconv.ParseUint(strings.TrimPrefix(text, "weight "), 10, 16)
	return uint16(w), err
}
