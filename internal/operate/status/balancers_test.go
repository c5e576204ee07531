package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// balancers are Services: one announced both ways, some that nobody announces, one without an address, and one of a balancer outside.
func balancers() LoadBalancers {
	since := now.Add(-3 * time.Hour)
	const taken = "its speaker refuses it: the machine with the MAC 02:00:5e:10:00:07 has it [take it out of the pool, or off that machine]"
	return LoadBalancers{Time: now, Overview: announce.Overview{Problems: []string{"speaker-node-2: BGPPeer spine: there is no BFDProfile fast"}, Speakers: []announce.Standing{
		{Node: "node-1", Up: true, Since: since, Reason: "it leaves its addresses to other nodes, if one is healthier: none of its interfaces that have a network is connected"},
		{Node: "node-2", Since: now.Add(-2 * time.Second), Reason: "no majority of the 3 voters grants it: node-1, node-3 are silent"},
		{Node: "node-3", Up: true, Since: since}, {Node: "node-3", Addr: netip.MustParseAddr("192.0.2.12"), Since: since, Reason: "the machine with the MAC 02:00:5e:10:00:07 has it"}, {Node: "node-3", Peer: "core", Since: now.Add(-time.Minute), Reason: "hold timer expired"}, {Node: "node-3", Peer: "tor", Up: true, Since: since},
	}, Addresses: []announce.AddressReport{
		{Services: []string{"shop/new"}, Reason: "it has no address yet [why: kubectl -n shop describe service new]", Announced: []announce.Announced{}, Elsewhere: []announce.NotAnnounced{}},
		{
			Address: "192.0.2.10", Services: []string{"shop/web"},
			Announced: []announce.Announced{{Protocol: announce.L2, Node: "node-3", Since: since, By: []string{"eth0"}}, {Protocol: announce.BGP, Node: "node-3", Since: since, By: []string{"spine", "tor"}}},
			Elsewhere: []announce.NotAnnounced{
				{Protocol: announce.L2, Node: "node-1", Reason: "node-3 comes first by the hash of node and address"},
				{Protocol: announce.BGP, Node: "node-1", Reason: announce.NoPeers},
				{Protocol: announce.BGP, Node: "node-3", Peer: "core", Reason: "the session is not up: hold timer expired", Since: now.Add(-time.Minute)},
			},
		},
		{
			Address: "192.0.2.11", Services: []string{"shop/api", "shop/mail"}, Reason: announce.NoEndpoints,
			Announced: []announce.Announced{}, Elsewhere: []announce.NotAnnounced{},
		},
		{
			Address: "192.0.2.12", Services: []string{"shop/files"}, Reason: "node-3: " + taken,
			Announced: []announce.Announced{}, Elsewhere: []announce.NotAnnounced{{Protocol: announce.L2, Node: "node-3", Reason: taken, Since: since}},
		},
		announce.ReportOutside(netip.MustParseAddr("203.0.113.5"), []api.Name{{Namespace: "shop", Name: "front"}}),
	}}}
}

// TestOnly: Services by name, and one that there is not.
func TestOnly(t *testing.T) {
	b := balancers()
	if err := b.Only([]string{"shop/web"}); err != nil || len(b.Addresses) != 1 || !b.OK() {
		t.Errorf("%v, %v", b.Addresses, err)
	}
	if err := b.Only([]string{"shop/none"}); err == nil || !strings.Contains(err.Error(), "no Service shop/none") {
		t.Error(err)
	}
	if all := balancers(); all.Only(nil) != nil || len(all.Addresses) != 5 || all.OK() {
		t.Errorf("%v", all)
	}
}
