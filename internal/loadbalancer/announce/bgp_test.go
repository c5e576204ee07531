package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

var vip6 = netip.MustParseAddr("2001:db8:2::2")

func router(name, addr string) *BGPPeer {
	return &BGPPeer{
		Name: name, MyASN: 64501, PeerASN: 64500, PeerAddress: netip.MustParseAddr(addr), PeerPort: 179,
		HoldTime: 90 * time.Second, KeepaliveTime: 30 * time.Second,
	}
}

func advertisement(name string) *BGPAdvertisement {
	return &BGPAdvertisement{Name: name, AggregationLength: 32, AggregationLengthV6: 128}
}

// bgpWorld is world as node-2 sees it, with a router and an advertisement for all.
func bgpWorld(t testing.TB) BGPInput {
	in := BGPInput{
		Input: world(t), Node: "node-2", Advertisements: []*BGPAdvertisement{advertisement("all")}, Peers: []*BGPPeer{router("tor", "172.18.0.1")},
		Password: func(secret string) (string, bool) { return "of " + secret, secret == "known" },
		Unserved: func(*Service) string { return "" }, LocalEndpoints: func(api.Name, bool) int { return 4 },
	}
	for i := range in.Nodes {
		in.Nodes[i].Addrs = []netip.Addr{netip.MustParseAddr(fmt.Sprintf("172.18.0.%d", 11+i)), netip.MustParseAddr(fmt.Sprintf("fd00::%d", 11+i))}
	}
	return in
}

// text is a decision, a line for each route, each address that is left out and each problem.
func (d BGPDecision) text() string {
	var lines []string
	for _, s := range d.Sessions {
		for _, r := range s.Routes {
			line := s.Peer + " " + r.Prefix.String()
			if r.NextHop.IsValid() {
				line += " via " + r.NextHop.String()
			}
			if r.LocalPref != 0 {
				line += fmt.Sprint(" pref ", r.LocalPref)
			}
			if len(r.Communities) > 0 {
				line += fmt.Sprint(" ", r.Communities)
			}
			if r.Endpoints > 0 {
				line += fmt.Sprint(" endpoints ", r.Endpoints)
			}
			if r.Leaving {
				line += " leaves"
			}
			lines = append(lines, line)
		}
	}
	for _, l := range d.LeftOut {
		lines = append(lines, strings.TrimSpace(l.Peer+" not "+l.Addr.String())+": "+l.Reason)
	}
	for _, p := range d.Problems {
		lines = append(lines, fmt.Sprintf("%s session=%v: %s", p.Peer, !p.NoSession, p.Reason))
	}
	return strings.Join(lines, "\n")
}

// bgpCases are changes of bgpWorld, and what node-2 tells its routers then.
type bgpCases map[string]struct {
	change func(*BGPInput)
	want   string
}

func (all bgpCases) check(t *testing.T) {
	t.Helper()
	for name, c := range all {
		in := bgpWorld(t)
		c.change(&in)
		got := DecideBGP(in)
		if got.text() != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got.text(), c.want)
		}
	}
}

const oneRoute = "tor 192.0.2.2/32"

// TestDecideBGP: whether an address is announced, and why not.
func TestDecideBGP(t *testing.T) {
	const all = oneRoute
	node := func(name string) []api.Selector { return []api.Selector{is("name", name)} }
	bgpCases{
		"one route": {func(*BGPInput) {}, all},
		"its pool is gone": {func(in *BGPInput) {
			in.Pools, in.Services[0].Pool = nil, "public"
			in.Advertisements[0].AggregationLength = 24
		}, "tor 192.0.2.2/32"},
		"no pool":           {func(in *BGPInput) { in.Pools = nil }, "not 192.0.2.2: " + NoPool},
		"no advertisement":  {func(in *BGPInput) { in.Advertisements = nil }, "not 192.0.2.2: " + NoBGPAdvertisement},
		"one with problems": {func(in *BGPInput) { in.Advertisements[0].Problems = []api.Problem{{}} }, "not 192.0.2.2: " + NoBGPAdvertisement},
		"another pool's":    {func(in *BGPInput) { in.Advertisements[0].IPAddressPools = []string{"x"} }, "not 192.0.2.2: " + NoBGPAdvertisement},
		"pool by label": {func(in *BGPInput) {
			in.Advertisements[0].IPAddressPoolSelectors = []api.Selector{is("pool", "public")}
		}, all},
		"another Service's": {func(in *BGPInput) { in.Advertisements[0].ServiceSelectors = []api.Selector{is("app", "x")} }, "not 192.0.2.2: " + NoBGPAdvertisement},
		"this node's":       {func(in *BGPInput) { in.Advertisements[0].NodeSelectors = node("node-2") }, all},
		"another node's":    {func(in *BGPInput) { in.Advertisements[0].NodeSelectors = node("node-1") }, "not 192.0.2.2: " + NotThisNode},
		"excluded":          {func(in *BGPInput) { in.Nodes[1].Excluded = "it leaves" }, all + " leaves\nnot 192.0.2.2: load balancers must not use this node: it leaves"},
		"excluded, without rules": {func(in *BGPInput) {
			in.Nodes[1].Excluded = "it leaves"
			in.Unserved = func(*Service) string { return "not yet" }
		}, "not 192.0.2.2: load balancers must not use this node: it leaves"},
		"excluded, in an aggregate with an address that stays": {func(in *BGPInput) {
			in.Advertisements[0].AggregationLength = 24
			other := &Service{Name: api.Name{Namespace: "shop", Name: "x"}, Addrs: []netip.Addr{vip.Next()}, Local: true}
			in.Services = append(in.Services, other)
			endpoints := in.Endpoints
			in.Endpoints = func(name api.Name) Endpoints {
				if name == other.Name {
					return Endpoints{Any: true, Ready: map[string]bool{"node-1": true}, Serving: map[string]bool{"node-1": true, "node-2": true}}
				}
				return endpoints(name)
			}
		}, "tor 192.0.2.0/24\nnot 192.0.2.3: " + NoLocalEndpoint},
		"the last endpoint here terminates": {func(in *BGPInput) {
			in.Services[0].Local = true
			in.Endpoints = func(api.Name) Endpoints {
				return Endpoints{Any: true, Ready: map[string]bool{"node-1": true}, Serving: map[string]bool{"node-1": true, "node-2": true}}
			}
		}, all + " leaves\nnot 192.0.2.2: " + NoLocalEndpoint},
		"no peers":         {func(in *BGPInput) { in.Peers = nil }, "not 192.0.2.2: " + NoPeers},
		"peer of others":   {func(in *BGPInput) { in.Peers[0].NodeSelectors = node("node-1") }, "not 192.0.2.2: " + NoPeers},
		"for another peer": {func(in *BGPInput) { in.Advertisements[0].Peers = []string{"x"} }, "tor not 192.0.2.2: " + NotForPeer},
		"no endpoints":     {func(in *BGPInput) { in.Endpoints = func(api.Name) Endpoints { return Endpoints{} } }, "not 192.0.2.2: " + NoEndpoints},
		"local":            {func(in *BGPInput) { in.Services[0].Local = true }, all},
		"local elsewhere":  {func(in *BGPInput) { in.Services[0].Local, in.Node = true, "node-1" }, all + " leaves\nnot 192.0.2.2: " + NoLocalEndpoint},
		"not programmed":   {func(in *BGPInput) { in.Unserved = func(*Service) string { return "not yet" } }, "not 192.0.2.2: not yet"},
		"unknown node":     {func(in *BGPInput) { in.Node = "x" }, " session=false: the API server knows no node x"},
		"shared with a Service of Local that is elsewhere": {func(in *BGPInput) {
			in.Services = append(in.Services, &Service{Name: api.Name{Namespace: "shop", Name: "x"}, Addrs: []netip.Addr{vip}, Local: true})
			in.Node = "node-1"
		}, all + " leaves\nnot 192.0.2.2: " + NoLocalEndpoint},
	}.check(t)
}

// TestRoutes: what routers are told.
func TestRoutes(t *testing.T) {
	const all = oneRoute
	bgpCases{
		"aggregate": {func(in *BGPInput) { in.Advertisements[0].AggregationLength = 28 }, "tor 192.0.2.0/28"},
		"too wide an aggregate": {func(in *BGPInput) { in.Advertisements[0].AggregationLength = 23 },
			"tor not 192.0.2.2: BGPAdvertisement all: 192.0.2.0/23 has addresses that are not the pool's [a longer aggregationLength]"},
		"two advertisements": {func(in *BGPInput) {
			in.Advertisements[0].Communities = []string{"1:2", "no-export"}
			in.Advertisements = append(in.Advertisements, &BGPAdvertisement{Name: "b", AggregationLength: 32, Communities: []string{"large:1:2:3", "1:2", "1:1"}})
			in.Communities = []*Community{{Aliases: []CommunityAlias{{"no-export", "65535:65281"}}}}
		}, all + " [1:1 1:2 65535:65281 large:1:2:3]"},
		"unknown alias": {func(in *BGPInput) { in.Advertisements[0].Communities = []string{"x"} },
			`tor not 192.0.2.2: BGPAdvertisement all: no Community has an alias "x"`},
		"alias of nonsense": {func(in *BGPInput) {
			in.Advertisements[0].Communities = []string{"x"}
			in.Communities = []*Community{{Aliases: []CommunityAlias{{"x", "1:2:3"}}}}
		}, `tor not 192.0.2.2: BGPAdvertisement all: "1:2:3" is neither a community such as 1234:5678 nor one such as large:1:2:3`},
		"local preference is not for others": {func(in *BGPInput) { in.Advertisements[0].LocalPref = 200 }, all},
		"local preference": {func(in *BGPInput) {
			in.Advertisements[0].LocalPref, in.Peers[0].PeerASN = 200, 64501
			in.Advertisements = append(in.Advertisements, &BGPAdvertisement{Name: "b", AggregationLength: 32, LocalPref: 150})
		}, all + " pref 200"},
		"dynamic ASN, internal": {func(in *BGPInput) {
			in.Advertisements[0].LocalPref, in.Peers[0].PeerASN, in.Peers[0].DynamicASN = 200, 0, DynamicASNInternal
		}, all + " pref 200"},

		"the other family": {func(in *BGPInput) { in.Peers[0].PeerAddress = netip.MustParseAddr("fd00::1") }, "tor not 192.0.2.2: " + NoFamily},
		"both families": {func(in *BGPInput) {
			in.Pools = append(in.Pools, pool(t, "six", "2001:db8:2::/64"))
			in.Services[0].Addrs = append(in.Services[0].Addrs, vip6)
			in.Peers[0].DualStackAddressFamily = true
		}, all + "\ntor 2001:db8:2::2/128 via fd00::12"},
		"no next hop": {func(in *BGPInput) {
			in.Nodes[1].Addrs = in.Nodes[1].Addrs[1:]
			in.Peers[0] = router("tor", "fd00::1")
			in.Peers[0].DualStackAddressFamily = true
		}, "tor not 192.0.2.2: " + NoNextHop},
	}.check(t)
}

// TestPodCIDRs: the node's pods are announced to all routers, also where load balancers must not use it.
func TestPodCIDRs(t *testing.T) {
	cidrs := func(in *BGPInput) {
		in.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParsePrefix("fd00:10:244:2::/64")}
		in.Services = nil
	}
	bgpCases{
		"one family": {cidrs, "tor 10.244.2.0/24\ntor not fd00:10:244:2::: " + NoFamily},
		"both families, two routers": {func(in *BGPInput) {
			cidrs(in)
			in.Peers = append(in.Peers, router("b", "fd00::1"))
			in.Peers[0].DualStackAddressFamily = true
		}, "b fd00:10:244:2::/64\ntor 10.244.2.0/24\ntor fd00:10:244:2::/64 via fd00::12\nb not 10.244.2.0: " + NoFamily},
		"excluded from load balancing": {func(in *BGPInput) {
			cidrs(in)
			in.PodCIDRs = in.PodCIDRs[:1]
			in.Nodes[1].Excluded = "it leaves"
		}, "tor 10.244.2.0/24"},
		"no address of the family": {func(in *BGPInput) {
			cidrs(in)
			in.Nodes[1].Addrs = in.Nodes[1].Addrs[:1]
			in.Peers[0].DualStackAddressFamily = true
		}, "tor 10.244.2.0/24\ntor not fd00:10:244:2::: " + NoNextHop},
	}.check(t)
}

var fast = &BFDProfile{Name: "fast", ReceiveInterval: 300 * time.Millisecond, TransmitInterval: 200 * time.Millisecond, DetectMultiplier: 3, PassiveMode: true, MinimumTTL: 250}

// TestPeers: which routers a node speaks to.
func TestPeers(t *testing.T) {
	const all = oneRoute
	bgpCases{
		"two routers": {func(in *BGPInput) {
			in.Peers = append(in.Peers, router("b", "172.18.0.2"))
			in.Advertisements[0].Peers = []string{"tor"}
			in.Advertisements = append(in.Advertisements, &BGPAdvertisement{Name: "b", AggregationLength: 24, Peers: []string{"b"}})
		}, "b 192.0.2.0/24\n" + all},
		"twice the same router": {func(in *BGPInput) { in.Peers = append(in.Peers, router("a", "172.18.0.1")) },
			"a 192.0.2.2/32\ntor session=false: BGPPeer a has the same address and port, and is older"},
		"another one for the same router, later": {func(in *BGPInput) {
			later := router("a", "172.18.0.1")
			later.Created = time.Unix(1, 0)
			in.Peers = append(in.Peers, later)
		}, oneRoute + "\na session=false: BGPPeer tor has the same address and port, and is older"},
		"Secret": {func(in *BGPInput) { in.Peers[0].PasswordSecret = "known" }, all},
		"no Secret": {func(in *BGPInput) { in.Peers[0].PasswordSecret = "x" },
			"not 192.0.2.2: " + NoPeers + "\ntor session=false: Secret x of type kubernetes.io/basic-auth with a key \"password\" is missing"},
		"interface": {func(in *BGPInput) { in.Peers[0].Interface, in.Peers[0].PeerAddress = "eth0", netip.Addr{} },
			"not 192.0.2.2: " + NoPeers + "\ntor session=false: interface is not supported [give peerAddress]"},
		"nobody behind an interface": {func(in *BGPInput) {
			behind(in, netip.Addr{})
		}, "not 192.0.2.2: " + NoPeers + "\ntor session=false: interface: no router is heard behind eth0 yet [does it send router advertisements there? FRR: neighbor INTERFACE interface remote-as …]"},
		"a router behind an interface": {func(in *BGPInput) { behind(in, netip.MustParseAddr("fe80::1%eth0")) }, oneRoute},
		"an interface and more": {func(in *BGPInput) {
			behind(in, netip.MustParseAddr("fe80::1%eth0"))
			in.Peers[0].EBGPMultiHop = true
		}, "not 192.0.2.2: " + NoPeers + "\ntor session=false: interface: not supported together with sourceAddress, vrf or ebgpMultiHop"},
		"vrf": {func(in *BGPInput) { in.Peers[0].VRF = "red" }, oneRoute},
		"one address in two VRFs": {func(in *BGPInput) {
			in.Peers = append(in.Peers, router("x", "172.18.0.1"))
			in.Peers[0].VRF = "red"
		}, oneRoute + "\nx 192.0.2.2/32"},
		"vrf and bfdProfile": {func(in *BGPInput) {
			in.Peers[0].VRF, in.Peers[0].BFDProfile, in.BFDProfiles = "red", "fast", []*BFDProfile{{Name: "fast", DetectMultiplier: 3}}
		}, oneRoute + "\ntor session=true: bfdProfile is not supported together with vrf; without BFD a router that is gone is noticed after holdTime (1m30s)"},
		"no BFDProfile": {func(in *BGPInput) { in.Peers[0].BFDProfile = "x" }, all +
			"\ntor session=true: there is no BFDProfile x; without BFD a router that is gone is noticed after holdTime (1m30s)"},
		"a BFDProfile that is wrong": {func(in *BGPInput) {
			in.BFDProfiles, in.Peers[0].BFDProfile = []*BFDProfile{{Name: "x", Problems: []api.Problem{{Message: "it is wrong"}}}}, "x"
		}, all + "\ntor session=true: BFDProfile x: it is wrong; without BFD a router that is gone is noticed after holdTime (1m30s)"},
		"BFD": {func(in *BGPInput) { in.BFDProfiles, in.Peers[0].BFDProfile = []*BFDProfile{fast}, "fast" }, all},
		"BFD, echo": {func(in *BGPInput) {
			echo := *fast
			echo.EchoMode = true
			in.BFDProfiles, in.Peers[0].BFDProfile = []*BFDProfile{&echo}, "fast"
		}, all + "\ntor session=true: BFDProfile fast: echoMode is not supported: BFD works without echoes, at the intervals of the profile"},
		"BFD and graceful restart": {func(in *BGPInput) {
			in.BFDProfiles, in.Peers[0].BFDProfile, in.Peers[0].EnableGracefulRestart = []*BFDProfile{fast}, "fast", true
		}, all + "\ntor session=true: enableGracefulRestart has no effect with bfdProfile: BFD ends with the speaker, and routers then drop the routes that they kept"},
		"holdTime 0": {func(in *BGPInput) { in.Peers[0].HoldTime = 0 }, all + "\ntor session=true: holdTime 0 is not supported: the session ends after 65535 s without a sign of life"},
		"families of addresses differ": {func(in *BGPInput) { in.Peers[0].SourceAddress = netip.MustParseAddr("fd00::12") },
			"not 192.0.2.2: " + NoPeers + "\ntor session=false: sourceAddress and peerAddress are of different families"},
		"a peer with problems": {func(in *BGPInput) { in.Peers[0].Problems = []api.Problem{{Message: "it is wrong"}} },
			"not 192.0.2.2: " + NoPeers + "\ntor session=false: it is wrong"},
	}.check(t)
}

// TestSessions: what becomes of a BGPPeer's fields.
func TestSessions(t *testing.T) {
	in := bgpWorld(t)
	in.Peers[0].LocalASN, in.Peers[0].PasswordSecret, in.Peers[0].ConnectTime = 64999, "known", 7*time.Second
	in.Peers = append(in.Peers, router("b", "fd00::1"))
	in.BFDProfiles, in.Peers[1].BFDProfile, in.Peers[1].EnableGracefulRestart = []*BFDProfile{fast}, "fast", true
	in.Peers[1].PeerASN, in.Peers[1].DynamicASN, in.Peers[1].RouterID = 0, DynamicASNExternal, netip.MustParseAddr("10.0.0.1")
	got := DecideBGP(in).Sessions
	if len(got) != 2 {
		t.Fatalf("%d sessions, want 2", len(got))
	}
	b, tor := got[0].SessionConfig, got[1].SessionConfig
	want := SessionConfig{
		Peer: "tor", LocalASN: 64999, PeerASN: 64500, Address: netip.MustParseAddrPort("172.18.0.1:179"), RouterID: netip.MustParseAddr("172.18.0.12"),
		Hold: 90 * time.Second, Keepalive: 30 * time.Second, Connect: 7 * time.Second, Password: "of known", IPv4: true,
	}
	if tor != want {
		t.Errorf("tor is %+v, want %+v", tor, want)
	}
	want = SessionConfig{
		Peer: "b", LocalASN: 64501, Address: netip.MustParseAddrPort("[fd00::1]:179"), RouterID: netip.MustParseAddr("10.0.0.1"),
		Hold: 90 * time.Second, Keepalive: 30 * time.Second, Connect: defaultConnectTime, IPv6: true,
		BFD: BFD{Receive: 300 * time.Millisecond, Transmit: 200 * time.Millisecond, Multiplier: 3, Passive: true, MinTTL: 250},
	}
	if b != want {
		t.Errorf("b is %+v, want %+v", b, want)
	}
	in.Nodes[1].Addrs = in.Nodes[1].Addrs[1:]
	in.Peers = in.Peers[:1]
	if id := DecideBGP(in).Sessions[0].RouterID; !id.Is4() || id.IsUnspecified() {
		t.Errorf("without an IPv4 address the router ID is %v", id)
	}
	for i := range 2 * MaxSessions {
		in.Peers = append(in.Peers, router(fmt.Sprint("x", i), fmt.Sprintf("172.19.0.%d", i)))
	}
	if d := DecideBGP(in); len(d.Sessions) != MaxSessions || len(d.Problems) != MaxSessions+1 {
		t.Errorf("%d sessions and %d problems with %d routers", len(d.Sessions), len(d.Problems), len(in.Peers))
	}
}

// FuzzCommunity: what is read is written the same, but for leading zeros.
func FuzzCommunity(f *testing.F) {
	for _, text := range []string{"1234:5678", "large:1:2:3", "65535:65281", "65536:1", "large:4294967295:0:1", "1:2:3", "large:1:2", ":", "+1:2", "-1:2", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCommunity(text)
		if err != nil {
			return
		}
		if !c.Large && (c.A > 65535 || c.B > 65535 || c.C != 0) {
			t.Errorf("%q became %+v", text, c)
		}
		again, err := ParseCommunity(c.String())
		if err != nil || again != c {
			t.Errorf("%q became %v, and that %v (%v)", text, c, again, err)
		}
	})
}

func TestCommunity(t *testing.T) {
	for text, want := range map[string]CommunityValue{
		"1234:5678": {A: 1234, B: 5678}, "65535:0": GracefulShutdown, "large:4294967295:0:3": {true, 4294967295, 0, 3},
		"65536:1": {}, "1:2:3": {}, "large:1:2": {}, "large:1:2:4294967296": {}, "1:": {}, ":": {}, "": {}, "+1:2": {}, "1: 2": {}, "no-export": {},
	} {
		got, err := ParseCommunity(text)
		if got != want || (err != nil) != (want == CommunityValue{}) {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	if n := (CommunityValue{A: 65535, B: 65281}).Number(); n != 0xffffff01 {
		t.Errorf("NO_EXPORT is %#x", n)
	}
	all := []CommunityValue{{true, 1, 1, 1}, {A: 2}, {A: 1, B: 2}, {A: 1, B: 1}}
	slices.SortFunc(all, CommunityValue.compare)
	if got := fmt.Sprint(all); got != "[1:1 1:2 2:0 large:1:1:1]" {
		t.Error(got)
	}
}

// BenchmarkDecideBGP: 10,000 addresses, two routers.
func BenchmarkDecideBGP(b *testing.B) {
	in := bgpWorld(b)
	in.Pools = []*ipam.Pool{pool(b, "public", "10.0.0.0/8")}
	in.Services, in.Peers = nil, append(in.Peers, router("b", "172.18.0.2"))
	a := netip.MustParseAddr("10.0.0.1")
	for i := range 10000 {
		in.Services = append(in.Services, &Service{Name: api.Name{Namespace: "n", Name: fmt.Sprint(i)}, Addrs: []netip.Addr{a}})
		a = a.Next()
	}
	for b.Loop() {
		if d := DecideBGP(in); len(d.Sessions[1].Routes) != 10000 {
			b.Fatal(len(d.Sessions[1].Routes))
		}
	}
}

// TestLinkBandwidth: routers hear how many endpoints the node has if an advertisement says so, and
// the policy is Local; for a route that is taken back too.
func TestLinkBandwidth(t *testing.T) {
	local := func(in *BGPInput) {
		in.Advertisements[0].LinkBandwidth, in.Services[0].Local = true, true
		in.Endpoints = func(api.Name) Endpoints {
			return Endpoints{Any: true, Ready: map[string]bool{"node-1": true, "node-2": true}, Serving: map[string]bool{"node-1": true, "node-2": true}}
		}
	}
	sharing := func(isLocal bool) func(*BGPInput) {
		return func(in *BGPInput) {
			local(in)
			in.Services = append(in.Services, &Service{Name: api.Name{Namespace: "shop", Name: "x"}, Addrs: in.Services[0].Addrs, Local: isLocal})
		}
	}
	bgpCases{
		"Local":                     {local, oneRoute + " endpoints 4"},
		"not asked for":             {func(in *BGPInput) { local(in); in.Advertisements[0].LinkBandwidth = false }, oneRoute},
		"Cluster":                   {func(in *BGPInput) { in.Advertisements[0].LinkBandwidth = true }, oneRoute},
		"two Services that share":   {sharing(true), oneRoute + " endpoints 8"},
		"one of them is Cluster":    {sharing(false), oneRoute},
		"an aggregate":              {func(in *BGPInput) { local(in); in.Advertisements[0].AggregationLength = 28 }, "tor 192.0.2.0/28"},
		"another one says nothing":  {func(in *BGPInput) { local(in); in.Advertisements = append(in.Advertisements, advertisement("b")) }, oneRoute + " endpoints 4"},
		"none, though the node has": {func(in *BGPInput) { local(in); in.LocalEndpoints = func(api.Name, bool) int { return 0 } }, oneRoute + " endpoints 1"},
		"excluded": {func(in *BGPInput) { local(in); in.Nodes[1].Excluded = "it leaves" },
			oneRoute + " endpoints 4 leaves\nnot 192.0.2.2: load balancers must not use this node: it leaves"},
	}.check(t)
}

// TestCountEndpoints: of one family, each once, the ready ones if there are any.
func TestCountEndpoints(t *testing.T) {
	at := func(addr, node string, ready, terminating bool) service.SliceEndpoint {
		return service.SliceEndpoint{Addr: netip.MustParseAddr(addr), Node: node, Ready: ready, Serving: true, Terminating: terminating}
	}
	web := service.Slice{Endpoints: []service.SliceEndpoint{
		at("10.0.0.1", "node-1", true, false), at("10.0.0.2", "node-1", true, false), at("10.0.0.3", "node-1", false, true),
		at("10.0.0.4", "node-2", false, true), {Addr: netip.MustParseAddr("10.0.0.5"), Node: "node-2"}, at("10.0.0.6", "", true, false),
	}}
	metrics := service.Slice{Endpoints: web.Endpoints[:2]}
	six := service.Slice{Endpoints: []service.SliceEndpoint{at("fd00::1", "node-1", true, false)}}
	for _, c := range []struct {
		node string
		is4  bool
		want int
	}{{"node-1", true, 2}, {"node-1", false, 1}, {"node-2", true, 1}, {"node-2", false, 0}, {"node-3", true, 0}} {
		if got := CountEndpoints([]*service.Slice{&web, &metrics, &six}, c.node, c.is4); got != c.want {
			t.Errorf("%s, IPv4 %v: %d, want %d", c.node, c.is4, got, c.want)
		}
	}
}

// behind puts the router behind an interface, at an address that has been heard.
func behind(in *BGPInput, at netip.Addr) {
	in.Peers[0].Interface, in.Peers[0].PeerAddress = "eth0", netip.Addr{}
	in.Neighbour = func(string) netip.Addr { return at }
}
