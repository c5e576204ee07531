package api_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

func addresses(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddr(t))
	}
	return all
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

func claims(name string, age int64, addr, podCIDR string, more ...string) api.NodeClaims {
	return api.NodeClaims{Name: name, Created: time.Unix(age, 0), Addrs: addresses(append([]string{addr}, more...)...), PodCIDRs: prefixes(podCIDR)}
}

// TestAcceptNodes: the claims of a rogue node among the honest nodes a and c.
func TestAcceptNodes(t *testing.T) {
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf("198.51.100.%d", i)
	}
	for _, test := range []struct {
		name            string
		rogue           api.NodeClaims
		owned, podCIDRs string // of the rogue
		problem         string
	}{
		{"honest", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24"), "192.0.2.2", "10.244.2.0/24", ""},
		{"a pod's address", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24", "10.244.1.7"), "192.0.2.2", "10.244.2.0/24", "10.244.1.7 does not count: it is in the podCIDR of node a"},
		{"a younger node's pod", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24", "10.244.3.7"), "192.0.2.2", "10.244.2.0/24", "10.244.3.7 does not count: it is in the podCIDR of node c"},
		{"its own pod's", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24", "10.244.2.7"), "192.0.2.2", "10.244.2.0/24", "10.244.2.7 does not count: it is in the podCIDR of node rogue"},
		{"a ClusterIP", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24", "10.96.0.1"), "192.0.2.2", "10.244.2.0/24", "10.96.0.1 does not count: it is in a ServiceCIDR"},
		{"localhost", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24", "127.0.0.1"), "192.0.2.2", "10.244.2.0/24", "127.0.0.1 does not count: it is no host's"},
		{"an older node's", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24", "192.0.2.1"), "192.0.2.2", "10.244.2.0/24", ""},
		{"too many", claims("rogue", 2, "192.0.2.2", "10.244.2.0/24", many...), "192.0.2.2 " + strings.Join(many[:api.MaxNodeAddrs-1], " "), "10.244.2.0/24", ""},
		{"another's podCIDR", claims("rogue", 2, "192.0.2.2", "10.244.1.128/25"), "192.0.2.2", "", "it overlaps 10.244.1.0/24 of node a, which is older"},
		{"the API server's network", claims("rogue", 2, "192.0.2.2", "203.0.113.0/25"), "192.0.2.2", "", "not inside the cluster CIDR 10.244.0.0/16"},
	} {
		f := api.ClusterFacts{ClusterCIDRs: prefixes("10.244.0.0/16"), ServiceCIDRs: prefixes("10.96.0.0/16")}
		a, c := claims("a", 1, "192.0.2.1", "10.244.1.0/24"), claims("c", 3, "192.0.2.3", "10.244.3.0/24")
		x := api.AcceptNodes([]api.NodeClaims{c, test.rogue, a}, f)
		if got := text(x.Owned("rogue")); got != test.owned {
			t.Errorf("%s: addresses %s, want %s", test.name, got, test.owned)
		}
		if got := text(x.PodCIDRs("rogue")); got != test.podCIDRs {
			t.Errorf("%s: podCIDRs %s, want %s", test.name, got, test.podCIDRs)
		}
		if got := fmt.Sprint(x.Problems); test.problem == "" && len(x.Problems) > 0 || !strings.Contains(got, test.problem) {
			t.Errorf("%s: problems %s, want %q", test.name, got, test.problem)
		}
		for _, n := range []api.NodeClaims{a, c} {
			if text(x.Owned(n.Name)) != text(n.Addrs) || text(x.PodCIDRs(n.Name)) != text(n.PodCIDRs) {
				t.Errorf("%s: node %s has only %v and %v", test.name, n.Name, x.Owned(n.Name), x.PodCIDRs(n.Name))
			}
		}
	}
}

func text[T any](all []T) string { return strings.Trim(fmt.Sprint(all), "[]") }

// TestAcceptNodesWithoutClusterCIDR: a podCIDR that contains an older node's address does not count, and takes no
// address from the node. The same is true if the cluster CIDR contains the nodes' own network.
func TestAcceptNodesWithoutClusterCIDR(t *testing.T) {
	for _, clusterCIDRs := range [][]netip.Prefix{nil, prefixes("192.168.0.0/16")} {
		x := api.AcceptNodes([]api.NodeClaims{
			claims("a", 1, "192.168.1.1", "192.168.0.0/24"), claims("b", 2, "192.168.1.2", "192.168.1.0/24"), claims("c", 3, "192.168.1.3", "192.168.2.0/24"),
		}, api.ClusterFacts{ClusterCIDRs: clusterCIDRs})
		for name, want := range map[string]string{"a": "192.168.1.1", "b": "192.168.1.2", "c": "192.168.1.3"} {
			if got := text(x.Owned(name)); got != want {
				t.Errorf("%v: node %s has the addresses %s, want %s", clusterCIDRs, name, got, want)
			}
		}
		if got := text(x.PodCIDRs("b")); got != "" {
			t.Errorf("%v: the podCIDR %s of b contains node a", clusterCIDRs, got)
		}
	}
}

// TestOlderNodeKeepsItsAddress, and a younger node stays reachable at an address that an older one claims.
func TestOlderNodeKeepsItsAddress(t *testing.T) {
	x := api.AcceptNodes([]api.NodeClaims{
		claims("young", 2, "192.0.2.2", "10.244.2.0/24", "192.0.2.1"), claims("old", 1, "192.0.2.1", "10.244.1.0/24"),
	}, api.ClusterFacts{})
	if text(x.Owned("old")) != "192.0.2.1" || text(x.Owned("young")) != "192.0.2.2" || text(x.Addrs("young")) != "192.0.2.2 192.0.2.1" {
		t.Errorf("old has %v, young %v of %v", x.Owned("old"), x.Owned("young"), x.Addrs("young"))
	}
	if x.HasPod("young", netip.MustParseAddr("10.244.1.1")) || !x.HasPod("young", netip.MustParseAddr("10.244.2.1")) || (*api.AcceptedNodes)(nil).HasPod("x", netip.Addr{}) {
		t.Error("HasPod is wrong")
	}
}

// BenchmarkAcceptNodes decides about the nodes of a large cluster.
func BenchmarkAcceptNodes(b *testing.B) {
	var nodes []api.NodeClaims
	for i := range 5000 {
		nodes = append(nodes, api.NodeClaims{
			Name: fmt.Sprint("node-", i), Created: time.Unix(int64(i), 0), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)},
		})
	}
	for b.Loop() {
		api.AcceptNodes(nodes, api.ClusterFacts{ClusterCIDRs: prefixes("10.0.0.0/8"), ServiceCIDRs: prefixes("10.96.0.0/16")})
	}
}
