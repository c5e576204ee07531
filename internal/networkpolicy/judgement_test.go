package networkpolicy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// fairway policy says which tier, policy and rule decides, and which policy would allow if it were
// not too big.
func TestJudgements(t *testing.T) {
	c := NewCluster()
	for i, name := range []string{"web", "client"} {
		n := api.Name{Namespace: "shop", Name: name}
		c.Pods[n] = &api.Pod{Name: n, Node: "node-1", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)})}}
	}
	web, client := c.Pods[api.Name{Namespace: "shop", Name: "web"}], "shop/client"
	ask := func(d Direction, peer, want string) {
		t.Helper()
		var out strings.Builder
		if _, err := c.WriteJudgements(&out, Question{Pod: web, Direction: d, Peer: peer, Proto: api.TCP, Port: 80}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%v, %s: it says\n%swant in it\n%s", d, peer, out.String(), want)
		}
	}
	ask(Ingress, client, "ingress of shop/web, from 10.244.1.2: allowed, no policy isolates it")

	everyone := Peer{Namespaces: &api.Selector{}}
	rule := func(name string, a Action) ClusterRule {
		return ClusterRule{Name: name, Action: a, Rule: Rule{Peers: []Peer{everyone}}}
	}
	baseline := &ClusterPolicy{Name: "default", Tier: Baseline, Subject: everyone}
	baseline.Rules[Ingress] = []ClusterRule{rule("", Deny)}
	c.ClusterPolicies["default"] = baseline
	ask(Ingress, client, "from 10.244.1.2: denied by Baseline default ingress[0] Deny")

	own := api.Name{Namespace: "shop", Name: "own"}
	p := &Policy{Name: own, Isolates: [2]bool{Ingress: true}}
	p.Rules[Ingress] = []Rule{{Peers: []Peer{{Pods: &api.Selector{}}}}}
	c.Policies[own] = p
	ask(Ingress, client, "from 10.244.1.2: allowed by shop/own ingress[0]")

	admin := &ClusterPolicy{Name: "guard", Tier: Admin, Priority: 5, Subject: everyone}
	admin.Rules[Ingress] = []ClusterRule{rule("leave", Pass), rule("stop", Deny)}
	c.ClusterPolicies["guard"] = admin
	ask(Ingress, client, "from 10.244.1.2 (after Admin guard ingress[0] Pass (leave)): allowed by shop/own ingress[0]")
	admin.Rules[Ingress] = admin.Rules[Ingress][1:]
	ask(Ingress, client, "denied by Admin guard ingress[0] Deny (stop)")
	delete(c.ClusterPolicies, "guard")

	p.Rules[Ingress] = append(p.Rules[Ingress], Rule{Ports: make([]Port, MaxPeers)})
	ask(Ingress, client, "  shop/own: the NetworkPolicies of this namespace list more than 4000 peers, ports, policies and values of selectors: this one isolates pods and allows nothing")

	node := netip.MustParseAddr("192.0.2.1")
	c.Nodes["node-1"] = &Node{Name: "node-1", Addrs: []netip.Addr{node}}
	p.Isolates = [2]bool{true, true}
	ask(Egress, node.String(), "to 192.0.2.1: allowed, NetworkPolicies isolate no pod from its node")
}
