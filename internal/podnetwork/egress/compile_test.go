package egress

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func name(namespace, of string) api.Name { return api.Name{Namespace: namespace, Name: of} }

func pod(namespace, of, node, app string, ips ...string) *api.Pod {
	return &api.Pod{Name: name(namespace, of), Node: node, Labels: map[string]string{"app": app}, Addrs: addrs(ips...)}
}

// TestCompile: who leaves with what, in any order of the objects.
func TestCompile(t *testing.T) {
	web := service.Egress{Selector: map[string]string{"app": "web"}}
	services := []*service.Service{
		{Name: name("shop", "web"), ClusterIPs: addrs("10.96.0.1", "fd00::1"), BalancerIPs: addrs("192.0.2.200", "2001:db8::200"), Egress: &web, Created: 9},
		{Name: name("shop", "all"), ClusterIPs: addrs("10.96.0.2"), BalancerIPs: addrs("192.0.2.201"), Egress: &service.Egress{All: true}, Created: 1},
		{Name: name("shop", "late"), ClusterIPs: addrs("10.96.0.3"), BalancerIPs: addrs("192.0.2.202"), Egress: &service.Egress{All: true}, Created: 2},
		{Name: name("shop", "plain"), ClusterIPs: addrs("10.96.0.4"), BalancerIPs: addrs("192.0.2.203")},
		{Name: name("new", "pending"), ClusterIPs: addrs("10.96.0.5"), Egress: &service.Egress{All: true}},
		{Name: name("routed", "both"), ClusterIPs: addrs("10.96.0.7"), BalancerIPs: addrs("192.0.2.205"), Egress: &service.Egress{All: true}},
		{Name: name("mute", "nobody"), ClusterIPs: addrs("10.96.0.6"), BalancerIPs: addrs("192.0.2.204"), Egress: &service.Egress{All: true}},
	}
	pods := []*api.Pod{
		pod("shop", "web-1", "a", "web", "10.244.1.2", "fd00:1::2"),
		pod("shop", "job-1", "b", "job", "10.244.2.2", "fd00:2::2"),
		pod("other", "web-1", "a", "web", "10.244.1.3"), // another namespace's: the selector does not count
		pod("new", "x", "a", "", "10.244.1.4"),
		pod("mute", "x", "a", "", "10.244.1.5"),
		pod("routed", "x", "a", "", "10.244.1.6"),
		{Name: name("shop", "host"), Node: "a", HostNetwork: true, Addrs: addrs("192.0.2.1")},
		pod("shop", "old", "a", "web", "10.244.1.9"), // an address that two pods have
		pod("shop", "next", "b", "job", "10.244.1.9"),
	}
	owners := map[string]string{"192.0.2.200": "a", "2001:db8::200": "b", "192.0.2.201": "b", "192.0.2.202": "c", "192.0.2.203": "a"}
	in := Input{Services: services, Pods: pods, Owner: func(a netip.Addr) string { return owners[a.String()] },
		Routed: func(a netip.Addr) bool { return a.String() == "192.0.2.205" }}
	for range 50 {
		rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		got := Compile(in)
		shared := got.Pods[netip.MustParseAddr("10.244.1.9")]
		if shared.Gateway != "" || shared.Node != "" {
			t.Errorf("an address of two pods leaves with %+v", shared)
		}
		delete(got.Pods, netip.MustParseAddr("10.244.1.9"))
		want := map[netip.Addr]Choice{
			netip.MustParseAddr("10.244.1.2"): {"a", name("shop", "web"), netip.MustParseAddr("192.0.2.200"), "a"},
			netip.MustParseAddr("fd00:1::2"):  {"a", name("shop", "web"), netip.MustParseAddr("2001:db8::200"), "b"},
			netip.MustParseAddr("10.244.2.2"): {"b", name("shop", "all"), netip.MustParseAddr("192.0.2.201"), "b"},
			netip.MustParseAddr("10.244.1.4"): {"a", name("new", "pending"), netip.Addr{}, ""},
			netip.MustParseAddr("10.244.1.5"): {"a", name("mute", "nobody"), netip.MustParseAddr("192.0.2.204"), ""},
			netip.MustParseAddr("10.244.1.6"): {"a", name("routed", "both"), netip.MustParseAddr("192.0.2.205"), ""},
		}
		if !maps.Equal(got.Pods, want) {
			t.Fatalf("got %v\nwant %v", got.Pods, want)
		}
		why := []api.Name{name("mute", "nobody"), name("new", "pending"), name("routed", "both"), name("shop", "late")}
		if have := Of(got.Ways(in, "a"), name("shop", "web")); !slices.Equal(have, []Way{
			{"shop/web", "pods with app=web", "192.0.2.200", "a", 1, 1, ""},
			{"shop/web", "pods with app=web", "2001:db8::200", "b", 1, 1, ""},
		}) {
			t.Fatalf("the ways of shop/web are %+v", have)
		}
		if have := got.Ways(in, "b")[0]; have != (Way{"mute/nobody", "the other pods of namespace mute", "192.0.2.204", "", 0, 1,
			"no node announces 192.0.2.204 by ARP or neighbour discovery: its pods reach nothing outside of the cluster by IPv4 [an L2Advertisement for its pool, and a ready endpoint of the Service: without one no node announces it]"}) {
			t.Fatalf("the way of mute/nobody is %+v", have)
		}
		if have := slices.SortedFunc(maps.Keys(got.Problems), api.Name.Compare); !reflect.DeepEqual(have, why) {
			t.Fatalf("problems of %v, want of %v: %v", have, why, got.Problems)
		}
	}
}
