package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// heard are routes as "PREFIX NEXTHOP ROUTER".
func heard(lines ...string) (all []Announcement) {
	for _, line := range lines {
		f := strings.Fields(line)
		all = append(all, Announcement{Prefix: netip.MustParsePrefix(f[0]), NextHop: netip.MustParseAddr(f[1]), Router: netip.MustParseAddr(f[2])})
	}
	return all
}

// TestAnnounced: which routers lead to a podCIDR of a node in another subnet.
func TestAnnounced(t *testing.T) {
	for name, test := range map[string]struct {
		said []Announcement
		want string // next hops, and whether the podCIDR itself was announced
	}{
		"nothing":              {nil, "[] false"},
		"itself":               {heard("10.244.9.0/24 192.0.2.254 192.0.2.254"), "[192.0.2.254] true"},
		"two routers":          {heard("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.244.9.0/24 192.0.2.253 192.0.2.253"), "[192.0.2.253 192.0.2.254] true"},
		"one router twice":     {heard("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.244.9.0/24 192.0.2.254 192.0.2.253"), "[192.0.2.254] true"},
		"an aggregate":         {heard("10.244.0.0/16 192.0.2.254 192.0.2.254", "0.0.0.0/0 192.0.2.253 192.0.2.253"), "[192.0.2.254] false"},
		"a default route":      {heard("0.0.0.0/0 192.0.2.253 192.0.2.253", "10.244.8.0/24 192.0.2.254 192.0.2.254"), "[192.0.2.253] false"},
		"a part of it":         {heard("10.244.9.0/25 192.0.2.254 192.0.2.254"), "[] false"},
		"the longest":          {heard("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.244.0.0/16 192.0.2.253 192.0.2.253"), "[192.0.2.254] true"},
		"a next hop elsewhere": {heard("10.244.9.0/24 198.51.100.9 192.0.2.254"), "[192.0.2.254] true"},
		"all elsewhere":        {heard("10.244.9.0/24 198.51.100.9 198.51.100.254"), "[] false"},
		"this node":            {heard("10.244.9.0/24 192.0.2.3 192.0.2.254"), "[] false"},
		"the other family":     {heard("10.244.9.0/24 2001:db8::fe 2001:db8::fe"), "[] false"},
		"many": {heard("10.244.9.0/24 192.0.2.201 192.0.2.254", "10.244.9.0/24 192.0.2.202 192.0.2.254", "10.244.9.0/24 192.0.2.203 192.0.2.254",
			"10.244.9.0/24 192.0.2.204 192.0.2.254", "10.244.9.0/24 192.0.2.205 192.0.2.254", "10.244.9.0/24 192.0.2.206 192.0.2.254",
			"10.244.9.0/24 192.0.2.209 192.0.2.254", "10.244.9.0/24 192.0.2.208 192.0.2.254", "10.244.9.0/24 192.0.2.207 192.0.2.254"),
			"[192.0.2.201 192.0.2.202 192.0.2.203 192.0.2.204 192.0.2.205 192.0.2.206 192.0.2.207 192.0.2.208] true"},
	} {
		c := testState()
		hops, itself := NewAnnounced(test.said, c.Networks, c.Self.Addrs).To(netip.MustParsePrefix("10.244.9.0/24"))
		vias := []netip.Addr{}
		for _, h := range hops {
			if vias = append(vias, h.Via); h.Link != 1 {
				t.Errorf("%s: %s is on link %d", name, h.Via, h.Link)
			}
		}
		if got := fmt.Sprint(vias, itself); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	link := NewAnnounced(heard("fd00:10:244:9::/64 fe80::1 2001:db8::fe"), testState().Networks, nil)
	if hops, _ := link.To(netip.MustParsePrefix("fd00:10:244:9::/64")); !slices.Equal(hops, []Hop{{netip.MustParseAddr("fe80::1"), 1}}) {
		t.Errorf("a link-local next hop: %v", hops)
	}
}

// TestNothingFromTheNetworkIsTrusted: what routers announce makes no route but one to a podCIDR of a node, and no
// podCIDR takes the routers' addresses.
func TestNothingFromTheNetworkIsTrusted(t *testing.T) {
	c := testState("10.244.9.0/24", "192.0.2.224/27") // the second has the router
	c.Way, c.ClusterCIDRs = WayBGP, nil
	c.Peers[2].Addrs = addresses("198.51.100.9")
	c.Announced = NewAnnounced(heard(
		"10.244.9.0/24 192.0.2.254 192.0.2.254",
		"0.0.0.0/0 192.0.2.250 192.0.2.250",
		"198.51.100.6/32 192.0.2.254 192.0.2.254", // the API server
		"10.96.0.0/16 192.0.2.254 192.0.2.254",    // Services
		"10.244.2.0/24 192.0.2.254 192.0.2.254",   // a neighbour's
		"10.244.3.0/24 192.0.2.254 192.0.2.254",   // this node's
		"10.244.77.0/24 192.0.2.254 192.0.2.254",  // nobody's
	), c.Networks, c.Self.Addrs)
	c.Gateways = nil
	p := Make(c)
	var got []string
	for _, dst := range sortedKeys(p.Routes) {
		if dst.Addr().Is4() {
			got = append(got, fmt.Sprintf("%s %s", dst, p.Routes[dst].Via))
		}
	}
	want := "[10.244.1.0/24 192.0.2.1 10.244.2.0/24 192.0.2.2 10.244.3.0/24 invalid IP 10.244.9.0/24 192.0.2.254]"
	if fmt.Sprint(got) != want {
		t.Errorf("the routes are\n%s, want\n%s", got, want)
	}
	if text := fmt.Sprint(p.Problems); !strings.Contains(text, "192.0.2.224/27 of node new is not used: it contains the address of a router: 192.0.2.250") {
		t.Errorf("the problems are %s", text)
	}
}

// TestLearned: which routes a machine outside of the cluster takes from routers.
func TestLearned(t *testing.T) {
	cidrs := prefixes("10.244.0.0/16", "192.0.2.128/25")
	for name, test := range map[string]struct {
		said []Announcement
		want string // destinations
	}{
		"nothing":                  {nil, "[]"},
		"pods, and what is not":    {heard("10.244.9.0/24 192.0.2.254 192.0.2.254", "10.245.0.0/24 192.0.2.254 192.0.2.254"), "[10.244.9.0/24]"},
		"the range itself":         {heard("10.244.0.0/16 192.0.2.9 192.0.2.9"), "[10.244.0.0/16]"},
		"a default route":          {heard("0.0.0.0/0 192.0.2.9 192.0.2.9", "10.244.1.0/26 192.0.2.9 192.0.2.9"), "[10.244.0.0/16 10.244.1.0/26 192.0.2.128/25]"},
		"what leads to the router": {heard("192.0.2.240/28 192.0.2.254 192.0.2.254", "192.0.2.128/28 192.0.2.254 192.0.2.254"), "[192.0.2.128/28]"},
		"a next hop elsewhere":     {heard("10.244.9.0/24 198.51.100.9 198.51.100.9"), "[]"},
	} {
		p := MakeLearned(test.said, cidrs, testState().Networks, testState().Self.Addrs)
		if got := fmt.Sprint(sortedKeys(p.Routes)); got != test.want || (len(p.Problems) > 0) != (len(p.Routes) == 0) {
			t.Errorf("%s: %s %v, want %s", name, got, p.Problems, test.want)
		}
	}
}
