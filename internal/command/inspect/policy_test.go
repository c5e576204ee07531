package inspect

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// shop is a cluster in which each tier decides about some pods. Pods have an IPv4 and an IPv6 address.
func shop() *networkpolicy.Cluster {
	c := networkpolicy.NewCluster()
	name := func(text string) api.Name { return api.Name{Namespace: "shop", Name: text} }
	for i, pod := range []string{"web", "client", "host"} {
		n := byte(i + 1)
		c.Pods[name(pod)] = &api.Pod{
			Name: name(pod), Node: "node-1", HostNetwork: pod == "host", Labels: map[string]string{"app": pod},
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, n}), netip.AddrFrom16([16]byte{0xfd, 15: n})},
		}
	}
	everyone := networkpolicy.Peer{Namespaces: &api.Selector{}}
	own := &networkpolicy.Policy{Name: name("own"), Isolates: [2]bool{networkpolicy.Ingress: true}, Selector: equals("app", "web")}
	own.Rules[networkpolicy.Ingress] = []networkpolicy.Rule{
		{Peers: []networkpolicy.Peer{{Pods: &api.Selector{}}}, Ports: []networkpolicy.Port{{Proto: api.TCP, First: 443, Last: 443}}},
	}
	big := &networkpolicy.Policy{Name: name("too-big"), Isolates: [2]bool{networkpolicy.Ingress: true}, Selector: equals("app", "web")}
	big.Rules[networkpolicy.Ingress] = []networkpolicy.Rule{{Ports: make([]networkpolicy.Port, networkpolicy.MaxPeers)}}
	c.Policies[own.Name], c.Policies[big.Name] = own, big
	guard := &networkpolicy.ClusterPolicy{Name: "guard", Tier: networkpolicy.Admin, Priority: 5, Subject: everyone}
	guard.Rules[networkpolicy.Ingress] = []networkpolicy.ClusterRule{{Name: "leave", Action: networkpolicy.Pass, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{everyone}}}}
	base := &networkpolicy.ClusterPolicy{Name: "default", Tier: networkpolicy.Baseline, Subject: everyone}
	base.Rules[networkpolicy.Egress] = []networkpolicy.ClusterRule{{Action: networkpolicy.Deny, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{everyone}, Ports: []networkpolicy.Port{{Proto: api.UDP, First: 53, Last: 53}}}}}
	c.ClusterPolicies["guard"], c.ClusterPolicies["default"] = guard, base
	return c
}

func equals(key, value string) api.Selector {
	return api.Selector{Requirements: []api.Requirement{{Key: key, Op: api.In, Values: []string{value}}}}
}

// TestPolicyGolden: what people and programs see of policies and connections.
func TestPolicyGolden(t *testing.T) {
	for file, test := range map[string]struct {
		pod    string
		q      policyQuestion
		denied bool
	}{
		"policy-pod":     {pod: "web"},
		"policy-host":    {pod: "host"},
		"policy-denied":  {pod: "web", q: policyQuestion{from: "shop/client", port: "80"}, denied: true},
		"policy-allowed": {pod: "web", q: policyQuestion{from: "shop/client", port: "443"}},
		"policy-dns":     {pod: "client", q: policyQuestion{to: "10.244.1.1", port: "53/udp"}, denied: true},
	} {
		proto, port, err := parsePort(test.q.port)
		if err != nil {
			t.Fatal(err)
		}
		answer, denied, err := explainPolicies(shop(), api.Name{Namespace: "shop", Name: test.pod}, test.q, proto, port)
		if err != nil || denied != test.denied {
			t.Errorf("%s: denied %v, %v", file, denied, err)
		}
		for _, f := range []output.Format{output.Table, output.JSON} {
			var got bytes.Buffer
			if err := output.Write(&got, f, answer); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", file+"."+string(f))
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, got.Bytes()) {
				t.Errorf("%s (%v):\n%s\nwant\n%s", path, err, got.Bytes(), want)
			}
		}
	}
}

// TestPolicyService: the endpoints of a Service are judged, by their own addresses and ports.
func TestPolicyService(t *testing.T) {
	web := []kube.Destination{{Proto: api.TCP, Port: 80, Addr: netip.MustParseAddr("10.244.1.1"), To: 443}}
	other := []kube.Destination{{Proto: api.TCP, Port: 80, Addr: netip.MustParseAddr("10.244.1.1"), To: 8080}}
	client := api.Name{Namespace: "shop", Name: "client"}
	for _, c := range []struct {
		to     []kube.Destination
		denied bool
	}{{web, false}, {other, true}, {append(web, other...), true}} {
		answer, denied, err := explainService(shop(), client, c.to)
		if err != nil || denied != c.denied || len(answer.Connections) != len(c.to) {
			t.Errorf("to %v: denied %v, %d connections, %v", c.to, denied, len(answer.Connections), err)
		}
	}
}

// TestPolicyText: an answer about policies that nobody enforces begins with that. Without --port no rule says that it
// does not include the port.
func TestPolicyText(t *testing.T) {
	answer, _, err := explainPolicies(shop(), api.Name{Namespace: "shop", Name: "web"}, policyQuestion{from: "shop/client"}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	answer.NotEnforced = "the agent runs without --network-policy"
	var got bytes.Buffer
	if err := answer.WriteTable(&got, false); err != nil {
		t.Fatal(err)
	}
	if text := got.String(); !strings.HasPrefix(text, "not enforced: the agent runs without --network-policy\n") ||
		!strings.Contains(text, "shop/own ingress[0] includes the peer, for some ports [name one with --port]\n") {
		t.Errorf("it says\n%s", text)
	}
}

// TestPodName: a pod is named with its namespace, or with -n.
func TestPodName(t *testing.T) {
	for _, c := range []struct{ namespace, subject, want string }{
		{"", "shop/web", "shop/web"}, {"shop", "web", "shop/web"}, {"other", "shop/web", "shop/web"}, {"", "web", ""},
	} {
		name, err := policyQuestion{namespace: c.namespace}.podName(c.subject)
		if (err == nil) != (c.want != "") || err == nil && name.String() != c.want {
			t.Errorf("-n %q %q: %v, %v", c.namespace, c.subject, name, err)
		}
	}
}
