package bgp

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestASN: sessions by the router's AS and the AS that it expects of the nodes.
func TestASN(t *testing.T) {
	const external, internal = "local 172.18.0.1 as 64500;", "local 172.18.0.1 as 64501;"
	for name, c := range map[string]struct {
		peer    func(*announce.BGPPeer)
		router  string
		asn     int      // the nodes' AS that the router expects
		want    []string // the route's path; nil: there is no session
		refused string   // the reason if there is no session
	}{
		"dynamic, external":          {func(p *announce.BGPPeer) { p.PeerASN, p.DynamicASN = 0, announce.DynamicASNExternal }, external, 64501, []string{"BGP.as_path: 64501\n"}, ""},
		"dynamic, internal":          {func(p *announce.BGPPeer) { p.PeerASN, p.DynamicASN = 0, announce.DynamicASNInternal }, internal, 64501, []string{"BGP.as_path: \n", "BGP.local_pref: 250"}, ""},
		"external, but it is ours":   {func(p *announce.BGPPeer) { p.PeerASN, p.DynamicASN = 0, announce.DynamicASNExternal }, internal, 64501, nil, "the router is in AS 64501 too, and dynamicASN is external"},
		"internal, but it is not":    {func(p *announce.BGPPeer) { p.PeerASN, p.DynamicASN = 0, announce.DynamicASNInternal }, external, 64501, nil, "the router is not in AS 64501"},
		"localASN":                   {func(p *announce.BGPPeer) { p.LocalASN = 4200000001 }, external, 4200000001, []string{"BGP.as_path: 4200000001\n"}, ""},
		"the router expects another": {func(*announce.BGPPeer) {}, external, 64999, nil, "before there is a session [does it have this node as its neighbour, in AS 64501?]"},
		"another AS than expected":   {func(p *announce.BGPPeer) { p.PeerASN = 64499 }, external, 64501, nil, "the router is not in AS 64499"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRack(t, 1)
			r.asn = c.asn
			w := &r.nodes[0].world
			w.Ads[0].LocalPref = 250
			c.peer(w.Peers[0])
			r.router(c.router, "")
			r.start(0)
			if c.want == nil {
				await(t, r.nodes[0].log.String, c.refused)
				r.until(vip4)
				return
			}
			r.until(vip4, "node-1")
			await(t, func() string { return r.ask("show", "route", vip4.String()+"/32", "all") }, c.want...)
		})
	}
}

// TestMultiHop: a router that is not on the nodes' network has a session only with ebgpMultiHop.
func TestMultiHop(t *testing.T) {
	r := newRack(t, 1)
	r.at = r.net.Outside.Namespace
	at := r.net.Outside.Addr(true)
	w := &r.nodes[0].world
	w.Peers[0].PeerAddress = netip.MustParseAddr(at.String())
	r.router("multihop; local "+at.String()+" as 64500;", "")
	r.start(0)
	await(t, r.nodes[0].log.String, "no route to host [is peerAddress right? A router that is more than one hop away needs ebgpMultiHop]")
	w.Peers[0].EBGPMultiHop = true
	r.tell(0)
	await(t, func() string { return r.ask("show", "route") }, vip4.String()+"/32", vip6.String()+"/128")
}
