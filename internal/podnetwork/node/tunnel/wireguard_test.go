package tunnel

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// TestWireGuardMessages: what is written to the kernel is what is read from it.
func TestWireGuardMessages(t *testing.T) {
	for _, want := range []plan.WireGuardPeer{
		{Endpoint: netip.MustParseAddrPort("192.0.2.1:10282"), Allowed: prefixes("10.244.1.0/24", "fd00:1::/64")},
		{Endpoint: netip.MustParseAddrPort("[2001:db8::1]:65535"), Allowed: prefixes("0.0.0.0/0")},
	} {
		e := netlink.NewAttributeEncoder()
		e.Nested(unix.WGDEVICE_A_PEERS, func(e *netlink.AttributeEncoder) error {
			e.Nested(0, Change{Key: keyOf(7), Peer: want}.encode)
			return nil
		})
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		d := &Device{Peers: map[plan.Key]plan.WireGuardPeer{}}
		if err := fwnetlink.Attributes(b, d.attribute); err != nil {
			t.Fatal(err)
		}
		if got := d.Peers[keyOf(7)]; got.Endpoint != want.Endpoint || !slices.Equal(got.Allowed, want.Allowed) {
			t.Errorf("%v is read as %v", want, got)
		}
		// The rest of a peer that is too large for one answer.
		if err := fwnetlink.Attributes(b, d.attribute); err != nil || len(d.Peers[keyOf(7)].Allowed) != 2*len(want.Allowed) {
			t.Errorf("read twice: %v, %v", d.Peers, err)
		}
	}
}

// FuzzWireGuardDevice: no answer makes the reader panic.
func FuzzWireGuardDevice(f *testing.F) {
	f.Add([]byte{8, 0, unix.WGDEVICE_A_LISTEN_PORT, 0, 1, 2, 0, 0})
	f.Add([]byte{12, 0, unix.WGDEVICE_A_PEERS, 0, 8, 0, 0, 0, 4, 0, unix.WGPEER_A_ENDPOINT, 0})
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = fwnetlink.Attributes(b, (&Device{Peers: map[plan.Key]plan.WireGuardPeer{}}).attribute)
	})
}
