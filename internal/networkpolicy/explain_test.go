package networkpolicy

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// TestExplain: the value says which tier, policy and rule decides, and which policy would allow if it did not exceed
// a limit.
func TestExplain(t *testing.T) {
	c := NewCluster()
	for i, name := range []string{"web", "client"} {
		n := api.Name{Namespace: "shop", Name: name}
		c.Pods[n] = &api.Pod{Name: n, Node: "node-1", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)})}}
	}
	web, client := c.Pods[api.Name{Namespace: "shop", Name: "web"}], "shop/client"
	// ask compares the finding of web: its reason, the rule that decides, the rules that passed and the limits.
	ask := func(d Direction, peer string, want Reason, details string) {
		t.Helper()
		all, err := c.Connections(web, d, peer, api.TCP, 80)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		e := Explain(c, all[0])
		f := [2]*Finding{Egress: e.Egress, Ingress: e.Ingress}[d]
		var got []string
		for _, r := range f.Passed {
			got = append(got, "after "+r.String())
		}
		if f.Rule != nil {
			got = append(got, f.Rule.String())
		}
		for _, l := range f.Limits {
			got = append(got, l.Policy+": "+l.Limit)
		}
		if text := strings.Join(got, "; "); f.Pod != "shop/web" || f.Direction != d.String() || f.Reason != want || text != details {
			t.Errorf("%v, %s: %+v\nsays %q, want %s %q", d, peer, f, text, want, details)
		}
		if f.Allowed != want.Allows() || e.Allowed != f.Allowed {
			t.Errorf("%v, %s: %v, %v", d, peer, e.Allowed, f.Allowed)
		}
	}
	ask(Ingress, client, NoPolicy, "")

	everyone := Peer{Namespaces: &api.Selector{}}
	rule := func(name string, a Action) ClusterRule {
		return ClusterRule{Name: name, Action: a, Rule: Rule{Peers: []Peer{everyone}}}
	}
	baseline := &ClusterPolicy{Name: "default", Tier: Baseline, Subject: everyone}
	baseline.Rules[Ingress] = []ClusterRule{rule("", Deny)}
	c.ClusterPolicies["default"] = baseline
	ask(Ingress, client, RuleDenies, "Baseline default ingress[0] Deny")

	own := api.Name{Namespace: "shop", Name: "own"}
	p := &Policy{Name: own, Isolates: [2]bool{Ingress: true}}
	p.Rules[Ingress] = []Rule{{Peers: []Peer{{Pods: &api.Selector{}}}}}
	c.Policies[own] = p
	ask(Ingress, client, RuleAllows, "shop/own ingress[0]")

	admin := &ClusterPolicy{Name: "guard", Tier: Admin, Priority: 5, Subject: everyone}
	admin.Rules[Ingress] = []ClusterRule{rule("leave", Pass), rule("stop", Deny)}
	c.ClusterPolicies["guard"] = admin
	ask(Ingress, client, RuleAllows, "after Admin guard ingress[0] Pass (leave); shop/own ingress[0]")
	admin.Rules[Ingress] = admin.Rules[Ingress][1:]
	ask(Ingress, client, RuleDenies, "Admin guard ingress[0] Deny (stop)")
	delete(c.ClusterPolicies, "guard")

	p.Rules[Ingress] = append(p.Rules[Ingress], Rule{Ports: make([]Port, MaxPeers)})
	ask(Ingress, client, Isolated, "shop/own: the NetworkPolicies of this namespace list more than 4000 peers, ports, policies and values of selectors: this one isolates pods and allows nothing")

	node := netip.MustParseAddr("192.0.2.1")
	c.Nodes["node-1"] = &Node{Name: "node-1", Addrs: []netip.Addr{node}}
	p.Isolates = [2]bool{true, true}
	ask(Egress, node.String(), OwnNode, "")
	ask(Egress, "10.244.1.1", OwnAddress, "")
}

// TestExplainBothEnds: both ends of a connection are judged, and ends that no policy sees are not.
func TestExplainBothEnds(t *testing.T) {
	c := NewCluster()
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, n}) }
	for i, name := range []string{"web", "client", "host"} {
		n := api.Name{Namespace: "shop", Name: name}
		c.Pods[n] = &api.Pod{Name: n, Node: "node-1", Addrs: []netip.Addr{addr(byte(i + 1))}, HostNetwork: name == "host"}
	}
	closed := api.Name{Namespace: "shop", Name: "closed"}
	c.Policies[closed] = &Policy{Name: closed, Isolates: [2]bool{Egress: true}}
	c.Policies[closed].Rules[Egress] = []Rule{{Ports: []Port{{Proto: api.TCP, First: 443, Last: 443}}}}
	web := c.Pods[api.Name{Namespace: "shop", Name: "web"}]
	explain := func(d Direction, peer string) Explanation {
		all, err := c.Connections(web, d, peer, api.TCP, 80)
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		return Explain(c, all[0])
	}
	if e := explain(Ingress, "shop/client"); e.Allowed || e.Egress.Reason != Isolated || e.Ingress.Reason != NoPolicy || len(e.Egress.PeerOnly) != 1 {
		t.Errorf("from a pod: %+v", e)
	}
	for _, outside := range []string{"10.244.1.3", "203.0.113.7"} {
		if e := explain(Ingress, outside); !e.Allowed || e.Egress != nil || e.Ingress == nil {
			t.Errorf("from %s: %+v", outside, e)
		}
	}
	text, err := json.Marshal(explain(Egress, "shop/client").Egress.PeerOnly)
	if want := `[{"policy":"shop/closed","tier":"NetworkPolicy","direction":"egress","number":0,"action":"Accept","text":"shop/closed egress[0]"}]`; err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	for peer, want := range map[string]string{"nobody": "does not name a peer", "shop/none": "there is no pod shop/none"} {
		if _, err := c.Connections(web, Egress, peer, api.TCP, 80); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", peer, err)
		}
	}
}
