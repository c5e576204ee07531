package announce

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// text is a report, a line for each thing that it says.
func (a AddressReport) text() string {
	lines := []string{strings.Join(a.Services, ",") + " " + a.Address + " " + a.Reason}
	for _, n := range a.Announced {
		lines = append(lines, fmt.Sprintf("%s %s by %v", n.Protocol, n.Node, n.By))
	}
	for _, n := range a.Elsewhere {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s not %s %s", n.Protocol, n.Node, n.Peer))+": "+n.Reason)
	}
	return strings.Join(lines, "\n")
}

var web = api.Name{Namespace: "shop", Name: "web"}

func held(all ...Holding) Said { return Said{Held: all} }

// but is what the speakers say, with some that are not well.
func (s Said) but(all ...Standing) Said { s.Standings = all; return s }

func by(p Protocol, node string, by ...string) Holding {
	return Holding{Service: web, Node: node, Protocol: p, By: by, Since: time.Unix(1, 0)}
}

func onlyL2(in *BGPInput)  { in.Advertisements = nil }
func onlyBGP(in *BGPInput) { in.L2 = nil }

// reports are changes of bgpWorld, what the speakers say, and the report of its address.
type reports map[string]struct {
	change func(*BGPInput)
	said   Said
	want   string
}

func (all reports) check(t *testing.T) {
	for name, c := range all {
		in := bgpWorld(t)
		c.change(&in)
		all := Report(in, c.said, nil)
		if len(all) != 1 || all[0].text() != c.want {
			t.Errorf("%s:\n%v\nwant\n%s", name, all[0].text(), c.want)
		}
	}
}

// TestReport: who announces an address, and why every other node does not. By the hash node-3 comes first, then node-1.
func TestReport(t *testing.T) {
	reports{
		"by L2": {onlyL2, held(by(L2, "node-3", "eth0")), `shop/web 192.0.2.2 
l2 node-3 by [eth0]
l2 not node-1: node-3 comes first by the hash of node and address
l2 not node-2: node-3 comes first by the hash of node and address`},
		"by another node than it should be": {onlyL2, held(by(L2, "node-1", "eth0")), `shop/web 192.0.2.2 
l2 node-1 by [eth0]
l2 not node-2: node-1 comes first by the hash of node and address
l2 not node-3: ` + fmt.Sprintf(notInTurn, "node-1")},
		"preferred, excluded": {func(in *BGPInput) {
			onlyL2(in)
			in.L2 = []*L2Advertisement{{PreferredNodeSelectors: []PreferredNodeSelector{{Weight: 5, Preference: is("name", "node-2")}}}}
			in.Nodes[0].Excluded = "it is shut down"
		}, held(by(L2, "node-2", "eth0")), `shop/web 192.0.2.2 
l2 node-2 by [eth0]
l2 not node-1: load balancers must not use this node: it is shut down
l2 not node-3: node-2 has more points by preferredNodeSelectors`},
		"Local, not selected": {func(in *BGPInput) {
			onlyL2(in)
			in.Services[0].Local = true
			in.L2 = []*L2Advertisement{{NodeSelectors: []api.Selector{is("name", "node-1"), is("name", "node-2")}}}
		}, held(by(L2, "node-2", "eth0")), `shop/web 192.0.2.2 
l2 node-2 by [eth0]
l2 not node-1: ` + NoLocalEndpoint + `
l2 not node-3: ` + NotThisNodeL2},
		"Local, none that may": {func(in *BGPInput) {
			onlyL2(in)
			in.Services[0].Local = true
			in.L2 = []*L2Advertisement{{NodeSelectors: []api.Selector{is("name", "node-3")}}}
		}, Said{}, `shop/web 192.0.2.2 ` + NoLocal + `
l2 not node-1: ` + NotThisNodeL2 + `
l2 not node-2: ` + NotThisNodeL2 + `
l2 not node-3: ` + NoLocalEndpoint},
		"no speaker": {func(in *BGPInput) { onlyL2(in); in.Nodes = in.Nodes[:1] }, Said{}, `shop/web 192.0.2.2 node-1 may: ` + notHeard + `
l2 not node-1: ` + notHeard},
		"no endpoints":     {func(in *BGPInput) { in.Endpoints = func(api.Name) Endpoints { return Endpoints{} } }, Said{}, "shop/web 192.0.2.2 " + NoEndpoints},
		"no pool":          {func(in *BGPInput) { in.Pools = nil }, Said{}, "shop/web 192.0.2.2 " + NoPool},
		"no advertisement": {func(in *BGPInput) { onlyL2(in); onlyBGP(in) }, Said{}, "shop/web 192.0.2.2 " + noAdvertisementAtAll},
		"a node's own": {func(in *BGPInput) { in.Nodes[1].Addrs = []netip.Addr{vip} }, Said{}, `shop/web 192.0.2.2 
node node-2 by []`},
	}.check(t)
}

// TestReportBGP: what differs for routers.
func TestReportBGP(t *testing.T) {
	reports{
		"by BGP": {func(in *BGPInput) {
			onlyBGP(in)
			in.Nodes[0].Excluded = "it is shut down"
		}, held(by(BGP, "node-2", "tor"), by(BGP, "node-3", "tor")), `shop/web 192.0.2.2 
bgp node-2 by [tor]
bgp node-3 by [tor]
bgp not node-1: load balancers must not use this node: it is shut down`},
		"by BGP, to one router": {func(in *BGPInput) {
			onlyBGP(in)
			in.Nodes = in.Nodes[1:2]
			in.Peers = append(in.Peers, router("other", "172.18.0.2"))
			in.Advertisements[0].Peers = []string{"tor"}
		}, held(by(BGP, "node-2", "tor")), `shop/web 192.0.2.2 
bgp node-2 by [tor]
bgp not node-2 other: ` + NotForPeer},
		"by BGP, no router": {func(in *BGPInput) { onlyBGP(in); in.Nodes, in.Peers = in.Nodes[:1], nil }, Said{},
			"shop/web 192.0.2.2 no node may announce it, for different reasons [fairway status --load-balancers -o wide]\nbgp not node-1: " + NoPeers},
	}.check(t)
}

// TestStandings: an announcement that nobody hears is none, and the reason is the speaker's own.
func TestStandings(t *testing.T) {
	since := time.Unix(7, 0)
	up, down, muted := Standing{Node: "node-2", Peer: "tor", Up: true}, Standing{Node: "node-2", Peer: "core", Since: since, Reason: "hold timer expired"}, Standing{Node: "node-1", Since: since, Reason: "alone"}
	two := func(in *BGPInput) {
		onlyBGP(in)
		in.Nodes = in.Nodes[1:2]
		in.Peers = append(in.Peers, router("core", "172.18.0.2"))
	}
	reports{
		"one of two sessions": {two, held(by(BGP, "node-2", "core", "tor")).but(up, down), `shop/web 192.0.2.2 
bgp node-2 by [tor]
bgp not node-2 core: the session is not up: hold timer expired`},
		"no session": {func(in *BGPInput) { two(in); in.Peers = in.Peers[:1] }, held(by(BGP, "node-2", "core")).but(down), `shop/web 192.0.2.2 node-2 core: the session is not up: hold timer expired
bgp not node-2 core: the session is not up: hold timer expired`},
		"another node's": {func(in *BGPInput) { onlyBGP(in); in.Nodes = in.Nodes[:1] }, held(by(BGP, "node-1", "core")).but(down), `shop/web 192.0.2.2 
bgp node-1 by [core]`},
		"no grant": {func(in *BGPInput) { onlyL2(in); in.Nodes = in.Nodes[:1] }, held(by(L2, "node-1", "eth0")).but(muted), `shop/web 192.0.2.2 node-1: its kernel mutes it: alone
l2 not node-1: its kernel mutes it: alone`},
		"a grant": {func(in *BGPInput) { onlyL2(in); in.Nodes = in.Nodes[:1] }, held(by(L2, "node-1", "eth0")).but(down, Standing{Node: "node-1", Up: true}), `shop/web 192.0.2.2 
l2 node-1 by [eth0]`},
	}.check(t)
	in := bgpWorld(t)
	two(&in)
	if all := Report(in, held(by(BGP, "node-2", "core")).but(down), nil); !all[0].Elsewhere[0].Since.Equal(since) {
		t.Errorf("the session is down since %v", all[0].Elsewhere[0].Since)
	}
}

// TestRefusals: a speaker that does not announce an address says why, and the report of the address has its words.
func TestRefusals(t *testing.T) {
	taken := Standing{Node: "node-3", Addr: vip, Since: time.Unix(7, 0), Reason: "a printer has it"}
	reports{
		"refused": {onlyL2, Said{}.but(Standing{Node: "node-3", Up: true}, taken), `shop/web 192.0.2.2 node-3: its speaker refuses it: a printer has it
l2 not node-1: it has no turn: node-3 comes first, and its speaker refuses it
l2 not node-2: it has no turn: node-3 comes first, and its speaker refuses it
l2 not node-3: its speaker refuses it: a printer has it`},
		"another address": {func(in *BGPInput) { onlyL2(in); in.Nodes = in.Nodes[2:] }, Said{}.but(Standing{Node: "node-3", Addr: vip6, Reason: "a printer has it"}), `shop/web 192.0.2.2 node-3 may: ` + notHeard + `
l2 not node-3: ` + notHeard},
		"no grant, announces nothing": {func(in *BGPInput) { onlyL2(in); in.Nodes = in.Nodes[:1] }, Said{}.but(Standing{Node: "node-1", Reason: "alone"}), `shop/web 192.0.2.2 node-1: its kernel mutes it: alone
l2 not node-1: its kernel mutes it: alone`},
		"another node is healthier": {func(in *BGPInput) { onlyL2(in); in.Nodes = in.Nodes[1:] }, held(by(L2, "node-2", "eth0")).but(Standing{Node: "node-3", Up: true, Reason: "no interface"}), `shop/web 192.0.2.2 
l2 node-2 by [eth0]
l2 not node-3: its speaker says: no interface`},
	}.check(t)
	in := bgpWorld(t)
	onlyL2(&in)
	if all := Report(in, Said{}.but(taken), nil); !all[0].Elsewhere[2].Since.Equal(taken.Since) || !all[0].Elsewhere[0].Since.IsZero() {
		t.Errorf("refused since %v", all[0].Elsewhere)
	}
}

// TestRelated: who shares an address with a Service decides about it, and nobody else.
func TestRelated(t *testing.T) {
	other, third := *bgpWorld(t).Services[0], *bgpWorld(t).Services[0]
	other.Name.Name, third.Name.Name, third.Addrs = "other", "third", []netip.Addr{vip6}
	all := append(bgpWorld(t).Services, &other, &third)
	for name, want := range map[string]string{"web": "[shop/web shop/other]", "third": "[shop/third]", "none": "[]"} {
		if got := fmt.Sprint(names(Related(all, []api.Name{{Namespace: "shop", Name: name}}))); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestReportByAddress: of two addresses of a Service each is where the speakers say, and a Service without one is said
// to wait for it.
func TestReportByAddress(t *testing.T) {
	in := bgpWorld(t)
	in.Advertisements = nil
	in.Pools = append(in.Pools, pool(t, "six", "2001:db8:2::/64"))
	in.Services[0].Addrs = []netip.Addr{vip6, vip}
	all := Report(in, Said{Held: []Holding{
		{Service: web, Node: "node-1", Protocol: L2, Addrs: []netip.Addr{vip}}, {Service: web, Node: "node-2", Protocol: L2, Addrs: []netip.Addr{vip6}},
	}}, []Pending{{Name: api.Name{Namespace: "shop", Name: "new"}}, {api.Name{Namespace: "shop", Name: "other"}, "no available IPs"}})
	got := ""
	for _, a := range all {
		a.Elsewhere = nil
		got += a.text() + "\n"
	}
	const want = `shop/new  it has no address yet [why: kubectl -n shop describe service new]
shop/other  it has no address yet: no available IPs
shop/web 192.0.2.2 
l2 node-1 by []
shop/web 2001:db8:2::2 
l2 node-2 by []
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
