package plan

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestLookup: ways that no test of package node compares with a kernel here, and addresses to which none leads.
func TestLookup(t *testing.T) {
	c := testState("10.244.9.0/24", "fd00:10:244:9::/64")
	c.Way, c.Key, c.Masquerade = WayWireGuard, keyOf(9), true
	c.Peers[2].Key = keyOf(2)
	c.Foreign = []Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("192.0.2.254"), Link: 1}, {Dst: netip.MustParsePrefix("192.0.2.0/24"), Link: 1}}
	c.OwnPods = map[netip.Addr]int{netip.MustParseAddr("10.244.3.7"): 7}
	c.NonMasqueradeCIDRs = prefixes("198.51.100.0/24")
	p := Make(c)
	p.Bind(map[Way]int{WayWireGuard: 5})
	for to, want := range map[string]string{
		"192.0.2.3":    "address of this node  []",
		"10.244.3.7":   "pod of this node  [dev 7]",
		"10.244.3.8":   "podCIDR of this node, but no pod has the address  []",
		"10.244.9.1":   "pods of another node, through WireGuard new [via 10.244.9.0 dev 5]",
		"10.244.1.1":   "pods of another node, to which no way leads older []", // the node has no key
		"192.0.2.77":   "network of a link of this node  [dev 1]",
		"203.0.113.7":  "outside, by a route of another program  [via 192.0.2.254 dev 1]",
		"2001:db8:9::": "no route  []",
	} {
		next := p.Lookup(netip.MustParseAddr(to))
		hops := []string{}
		for _, h := range next.Hops {
			text := fmt.Sprintf("dev %d", h.Link)
			if h.Via.IsValid() {
				text = fmt.Sprintf("via %s dev %d", h.Via, h.Link)
			}
			hops = append(hops, text)
		}
		if got := fmt.Sprintf("%s %s %v", next.Why, next.Node, hops); got != want {
			t.Errorf("%s: %q, want %q", to, got, want)
		}
	}
	for to, want := range map[string]Why{"203.0.113.7": WhyMasquerade, "198.51.100.7": WhyOutside, "10.244.9.1": WhyEncrypted, "192.0.2.3": WhySelf} {
		if next := p.LookupFrom(netip.MustParseAddr("10.244.3.7"), netip.MustParseAddr(to)); next.Why != want {
			t.Errorf("from a pod to %s: %s, want %s", to, next.Why, want)
		}
	}
}
