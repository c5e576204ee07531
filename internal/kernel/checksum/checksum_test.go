package checksum

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
)

// TestOf: the example of RFC 1071, section 3, and a captured IPv4 header.
func TestOf(t *testing.T) {
	if got := Of([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != ^uint16(0xddf2) {
		t.Errorf("of the RFC's example: %#x", got)
	}
	header := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	if got := Of(header); got != 0xb861 {
		t.Errorf("of an IPv4 header: %#x, want 0xb861", got)
	}
	if got, want := Of([]byte{1, 2, 3}), Of([]byte{1, 2, 3, 0}); got != want {
		t.Errorf("of an odd number of bytes: %#x, want %#x", got, want)
	}
}

// TestTransport: a datagram of any length that contains its checksum has the checksum 0. With another address, protocol
// or byte the checksum differs.
func TestTransport(t *testing.T) {
	for _, addrs := range []string{"192.0.2.1 198.51.100.7", "2001:db8::1 2001:db8::2"} {
		a, b, _ := strings.Cut(addrs, " ")
		from, to := netip.MustParseAddr(a), netip.MustParseAddr(b)
		for _, size := range []int{0, 1, 2, 1399, 65000} {
			udp := make([]byte, 8+size)
			for i := range udp {
				udp[i] = byte(i * 7)
			}
			udp[6], udp[7] = 0, 0
			binary.BigEndian.PutUint16(udp[6:], Transport(from, to, 17, udp))
			if got := Transport(from, to, 17, udp); got != 0 {
				t.Errorf("%s, %d bytes: %#x", addrs, size, got)
			}
			udp[0]++
			if Transport(from, to, 17, udp) == 0 || Transport(from, to.Next(), 17, udp) == Transport(from, to, 17, udp) || Transport(from, to, 6, udp) == Transport(from, to, 17, udp) {
				t.Errorf("%s, %d bytes: a change is not seen", addrs, size)
			}
		}
	}
}
