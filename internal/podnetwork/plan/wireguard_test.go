package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

func keyOf(b byte) Key { return Key{0: b, 31: 1} }

// wgText is a plan's peers and routes, as a text.
func wgText(p *Plan) string {
	var lines []string
	for _, key := range slices.SortedFunc(maps.Keys(p.WireGuard.Peers), func(a, b Key) int { return int(a[0]) - int(b[0]) }) {
		lines = append(lines, fmt.Sprintf("%d %s %s", key[0], p.WireGuard.Peers[key].Endpoint, api.JoinPrefixes(p.WireGuard.Peers[key].Allowed)))
	}
	for _, dst := range sortedKeys(p.Routes) {
		if r := p.Routes[dst]; r.By != WayRoutes && !slices.Contains(p.PodCIDRs, dst) {
			lines = append(lines, strings.TrimSpace(fmt.Sprint(dst, " ", r.By)))
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
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", ReasonNoKey},
		{"an older node's key", func(_, b, _ *Peer) { b.Key = keyOf(1) },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", ReasonNoKey},
		{"this node's key", func(_, b, _ *Peer) { b.Key = keyOf(9) },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", ReasonNoKey},
		{"an older node's podCIDR", func(_, b, _ *Peer) { b.PodCIDRs = prefixes("10.244.1.128/25") },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n2 198.51.100.2:10282 \n10.244.1.0/24 wireguard\nfd00:1::/64 wireguard", ReasonPodCIDR},
		{"an address in an older node's podCIDR", func(_, b, _ *Peer) { b.Addrs = addresses("10.244.1.7") },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", ReasonNoKey},
		{"this node's address", func(_, b, self *Peer) { b.Addrs = self.Addrs },
			"1 198.51.100.1:10282 10.244.1.0/24, fd00:1::/64\n10.244.1.0/24 wireguard\n10.244.2.0/24\nfd00:1::/64 wireguard", ReasonNoKey},
		{"over IPv6, where this node has no IPv4", func(_, b, self *Peer) { self.Addrs = addresses("2001:db8::7"); b.Addrs = addresses("2001:db8:1::2") },
			strings.NewReplacer("198.51.100.1:10282", "[2001:db8:1::1]:10282", "198.51.100.2:10282", "[2001:db8:1::2]:10282").Replace(whole), ""},
	} {
		c := testState()
		c.Way, c.Key, c.Departed, c.ClusterCIDRs, c.Enforce = WayWireGuard, keyOf(9), nil, nil, true
		c.Self.Addrs, c.Self.PodCIDRs = addresses("192.0.2.1"), prefixes("10.244.9.0/24")
		a, b := a, b
		test.change(&a, &b, &c.Self)
		c.Peers = []Peer{b, c.Self, a}
		p := Make(c)
		if got := wgText(p); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.name, got, test.want)
		}
		reasons := []string{}
		for _, problem := range p.Problems {
			reasons = append(reasons, problem.Reason)
		}
		if got := strings.Join(reasons, " "); got != test.reason {
			t.Errorf("%s: problems %v, want %q", test.name, p.Problems, test.reason)
		}
		for _, dst := range p.WireGuard.Encrypted {
			if slices.Contains(p.PodCIDRs, dst) {
				t.Errorf("%s: this node's own podCIDR %s has to come encrypted", test.name, dst)
			}
		}
		if len(p.WireGuard.Encrypted) < 2 {
			t.Errorf("%s: podCIDRs that have to come encrypted: %v", test.name, p.WireGuard.Encrypted)
		}
	}
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
