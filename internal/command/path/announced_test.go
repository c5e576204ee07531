package path

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

func TestAnnouncementsOf(t *testing.T) {
	const addr = "203.0.113.7"
	speakers := []announce.Standing{{Node: "node-1"}}
	for name, c := range map[string]struct {
		a        announce.AddressReport
		speakers []announce.Standing
		want     string // empty: not known
	}{
		"one node":           {announce.AddressReport{Announced: []announce.Announced{{Protocol: "l2", Node: "node-1", By: []string{"eth0"}}}}, nil, "{[node-1] l2 by eth0 }"},
		"two nodes":          {announce.AddressReport{Announced: []announce.Announced{{Protocol: "bgp", Node: "node-1", By: []string{"tor"}}, {Protocol: "bgp", Node: "node-2", By: []string{"tor"}}}}, speakers, "{[node-1 node-2] bgp by tor }"},
		"to two peers":       {announce.AddressReport{Announced: []announce.Announced{{Protocol: "bgp", Node: "node-1"}, {Protocol: "l2", Node: "node-1"}}}, speakers, "{[node-1] bgp }"},
		"nobody":             {announce.AddressReport{Reason: "no endpoint"}, speakers, "{[]  no endpoint}"},
		"nobody, no speaker": {announce.AddressReport{Reason: "no endpoint"}, nil, ""},
		"outside":            {announce.AddressReport{Announced: []announce.Announced{{Protocol: "proxy"}}}, speakers, ""},
	} {
		c.a.Address = addr
		got := ""
		if x, ok := announcementsOf(announce.Overview{Addresses: []announce.AddressReport{c.a}, Speakers: c.speakers})[netip.MustParseAddr(addr)]; ok {
			got = fmt.Sprint(x)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
