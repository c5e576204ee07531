package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/labels"
	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/service"
)

// The command says which tier, policy and rule decides, and which policy would allow if it were
// not too big.
func TestPolicyJudgements(t *testing.T) {
	c := policy.NewCluster()
	for i, name := range []string{"web", "client"} {
		n := service.Name{Namespace: "shop", Name: name}
		c.Pods[n] = &policy.Pod{Name: n, Node: "node-1", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)})}}
	}
	web, client := c.Pods[service.Name{Namespace: "shop", Name: "web"}], "shop/client"
	ask := func(d policy.Direction, peer, want string) {
		t.Helper()
		var out strings.Builder
		if _, err := writeJudgements(&out, c, web, d, peer, service.TCP, 80); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%v, %s: it says\n%swant in it\n%s", d, peer, out.String(), want)
		}
	}
	ask(policy.Ingress, client, "ingress of shop/web, from 10.244.1.2: allowed, no policy isolates it")

	everyone := policy.Peer{Namespaces: &labels.Selector{}}
	rule := func(name string, a policy.Action) policy.ClusterRule {
		return policy.ClusterRule{Name: name, Action: a, Rule: policy.Rule{Peers: []policy.Peer{everyone}}}
	}
	baseline := &policy.ClusterPolicy{Name: "default", Tier: policy.Baseline, Subject: everyone}
	baseline.Rules[policy.Ingress] = []policy.ClusterRule{rule("", policy.Deny)}
	c.ClusterPolicies["default"] = baseline
	ask(policy.Ingress, client, "from 10.244.1.2: denied by Baseline default ingress[0] Deny")

	own := service.Name{Namespace: "shop", Name: "own"}
	p := &policy.Policy{Name: own, Isolates: [2]bool{policy.Ingress: true}}
	p.Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.Peer{{Pods: &labels.Selector{}}}}}
	c.Policies[own] = p
	ask(policy.Ingress, client, "from 10.244.1.2: allowed by shop/own ingress[0]")

	admin := &policy.ClusterPolicy{Name: "guard", Tier: policy.Admin, Priority: 5, Subject: everyone}
	admin.Rules[policy.Ingress] = []policy.ClusterRule{rule("leave", policy.Pass), rule("stop", policy.Deny)}
	c.ClusterPolicies["guard"] = admin
	ask(policy.Ingress, client, "from 10.244.1.2 (after Admin guard ingress[0] Pass (leave)): allowed by shop/own ingress[0]")
	admin.Rules[policy.Ingress] = admin.Rules[policy.Ingress][1:]
	ask(policy.Ingress, client, "denied by Admin guard ingress[0] Deny (stop)")
	delete(c.ClusterPolicies, "guard")

	p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress], policy.Rule{Ports: make([]policy.Port, policy.MaxPeers)})
	ask(policy.Ingress, client, "  shop/own: the NetworkPolicies of this namespace list more than 4000 peers and ports: this one isolates pods and allows nothing")

	node := netip.MustParseAddr("192.0.2.1")
	c.Nodes["node-1"] = &policy.Node{Name: "node-1", Addrs: []netip.Addr{node}}
	p.Isolates = [2]bool{true, true}
	ask(policy.Egress, node.String(), "to 192.0.2.1: allowed, NetworkPolicies isolate no pod from its node")
}
