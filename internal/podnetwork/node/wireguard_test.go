package node

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func keyOf(b byte) Key { return Key{0: b, 31: 1} }

// wgText is a plan's peers and routes, as a text.
func wgText(p *plan) string {
	var lines []string
	for _, key := range slices.SortedFunc(maps.Keys(p.wg.peers), func(a, b Key) int { return int(a[0]) - int(b[0]) }) {
		lines = append(lines, fmt.Sprintf("%d %s %s", key[0], p.wg.peers[key].endpoint, joinPrefixes(p.wg.peers[key].allowed)))
	}
	for _, dst := range sortedKeys(p.routes) {
		if r := p.routes[dst]; r.by != WayRoutes && !slices.Contains(p.podCIDRs, dst) {
			lines = append(lines, strings.TrimSpace(fmt.Sprint(dst, " ", r.by)))
		}
	}
	return strings.Join(lines, "\n")
}

// TestWireGuardPlan: which keys stand for which addresses. A node takes neither another's podCIDR, nor
// its key, nor the way to it; and a podCIDR without a key leads to nowhere.
func TestWireGuardPlan(t *testing.T) {
	a := Peer{Name: "a", Created: born(1), Addrs: addresses("198.51.100.1", "2001:db8:1::1"), PodCIDRs: prefixes("10.244.1.0/24", "fd00:1::/64"), Key: keyOf(1)}
	b := Peer{Name: "b", Created: born(2), Addrs: addresses("198.51.100.2"), PodCIDRs: prefixes("10.244.2.0/24"), Key: keyOf(2)}
	whole := "1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n2 198.51.100.2:10282 10.244.2.0/24\n10.244.1.0/24 wireguard\n10.244.2.0/24 wireguard\nfd00:1::/64 wireguard"
	for _, test := range []struct {
		name   string
		change func(a, b, self *Peer)
		want   string
		reason string // of the problem
	}{
		{"all right", func(_, _, _ *Peer) {}, whole, ""},
		{"no key", func(_, b, _ *Peer) { b.Key = Key{} },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", reasonNoKey},
		{"an older node's key", func(_, b, _ *Peer) { b.Key = keyOf(1) },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", reasonNoKey},
		{"this node's key", func(_, b, _ *Peer) { b.Key = keyOf(9) },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", reasonNoKey},
		{"an older node's podCIDR", func(_, b, _ *Peer) { b.PodCIDRs = prefixes("10.244.1.128/25") },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n2 198.51.100.2:10282 \n10.244.1.0/24 wireguard\nfd00:1::/64 wireguard", reasonPodCIDR},
		{"an address in an older node's podCIDR", func(_, b, _ *Peer) { b.Addrs = addresses("10.244.1.7") },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", reasonNoKey},
		{"this node's address", func(_, b, self *Peer) { b.Addrs = self.Addrs },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", reasonNoKey},
		{"over IPv6, where this node has no IPv4", func(_, b, self *Peer) { self.Addrs = addresses("2001:db8::7"); b.Addrs = addresses("2001:db8:1::2") },
			strings.NewReplacer("198.51.100.1:10282", "[2001:db8:1::1]:10282", "198.51.100.2:10282", "[2001:db8:1::2]:10282").Replace(whole), ""},
	} {
		c := testState()
		c.way, c.key, c.departed, c.clusterCIDRs, c.enforce = WayWireGuard, keyOf(9), nil, nil, true
		c.self.Addrs, c.self.PodCIDRs = addresses("192.0.2.1"), prefixes("10.244.9.0/24")
		a, b := a, b
		test.change(&a, &b, &c.self)
		c.peers = []Peer{b, c.self, a}
		p := makePlan(c)
		if got := wgText(p); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
		reasons := []string{}
		for _, problem := range p.problems {
			reasons = append(reasons, problem.reason)
		}
		if got := strings.Join(reasons, " "); got != test.reason {
			t.Errorf("%s: problems %v, want %q", test.name, p.problems, test.reason)
		}
		for _, dst := range p.wg.encrypted {
			if slices.Contains(p.podCIDRs, dst) {
				t.Errorf("%s: this node's own podCIDR %s has to come encrypted", test.name, dst)
			}
		}
		if len(p.wg.encrypted) < 2 {
			t.Errorf("%s: podCIDRs that have to come encrypted: %v", test.name, p.wg.encrypted)
		}
	}
}

// TestKeyPatience: a node without a key counts at once and is reported after a minute, once.
func TestKeyPatience(t *testing.T) {
	log := &testnet.Log{}
	n := New(Config{Log: slog.New(slog.NewTextHandler(log, nil))})
	missing := []problem{{"b", reasonNoKey, "node b has no key"}}
	now := time.Now()
	n.now = func() time.Time { return now }
	for i, want := range []int{0, 0, 1, 1} {
		n.report(missing)
		if got := log.Count("node b has no key"); got != want {
			t.Errorf("after %d half minutes: reported %d times, want %d", i, got, want)
		}
		now = now.Add(patient[reasonNoKey] / 2)
	}
	n.report(nil)
	n.report(missing)
	if got := log.Count("node b has no key"); got != 1 {
		t.Errorf("when it is new again: reported %d times", got)
	}
}

// TestWireGuardMessages: what is written to the kernel is what is read from it.
func TestWireGuardMessages(t *testing.T) {
	for _, want := range []wgPeer{
		{netip.MustParseAddrPort("192.0.2.1:10282"), prefixes("10.244.1.0/24", "fd00:1::/64")},
		{netip.MustParseAddrPort("[2001:db8::1]:65535"), prefixes("0.0.0.0/0")},
	} {
		e := netlink.NewAttributeEncoder()
		e.Nested(unix.WGDEVICE_A_PEERS, func(e *netlink.AttributeEncoder) error {
			e.Nested(0, wgChange{key: keyOf(7), peer: want}.encode)
			return nil
		})
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		d := &wgDevice{peers: map[Key]wgPeer{}}
		if err := fwnetlink.Attributes(b, d.attribute); err != nil {
			t.Fatal(err)
		}
		if got := d.peers[keyOf(7)]; got.endpoint != want.endpoint || !slices.Equal(got.allowed, want.allowed) {
			t.Errorf("%v is read as %v", want, got)
		}
		// The rest of a peer that is too large for one answer.
		if err := fwnetlink.Attributes(b, d.attribute); err != nil || len(d.peers[keyOf(7)].allowed) != 2*len(want.allowed) {
			t.Errorf("read twice: %v, %v", d.peers, err)
		}
	}
}

// FuzzWireGuardDevice: no answer makes the reader panic.
func FuzzWireGuardDevice(f *testing.F) {
	f.Add([]byte{8, 0, unix.WGDEVICE_A_LISTEN_PORT, 0, 1, 2, 0, 0})
	f.Add([]byte{12, 0, unix.WGDEVICE_A_PEERS, 0, 8, 0, 0, 0, 4, 0, unix.WGPEER_A_ENDPOINT, 0})
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = fwnetlink.Attributes(b, (&wgDevice{peers: map[Key]wgPeer{}}).attribute)
	})
}

// TestParseKey: what String prints is read; all else is no key.
func TestParseKey(t *testing.T) {
	if k := keyOf(5); ParseKey(k.String()) != k {
		t.Errorf("%s is read as %s", k, ParseKey(k.String()))
	}
	for _, text := range []string{"", "x", "cHVibGlj", keyOf(5).String() + "AAAA", strings.Repeat("A", 100)} {
		if k := ParseKey(text); k != (Key{}) {
			t.Errorf("%q is read as %s", text, k)
		}
	}
}
