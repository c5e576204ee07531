package nftables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// rejecting returns a node that rejects, with pods of its own and one elsewhere.
func rejecting(t *testing.T) (n *node, hosts map[string]*testnet.Host, addrs map[string][]netip.Addr) {
	t.Helper()
	net := testnet.New(t)
	n = &node{net.Node("here"), networkpolicy.New("here"), New()}
	n.table.Reject = true
	t.Cleanup(func() { n.table.Close() })
	hosts = map[string]*testnet.Host{}
	addrs = map[string][]netip.Addr{
		"in":     {netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:244:1::1")},
		"out":    {netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")},
		"free":   {netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("fd00:10:244:1::3")},
		"remote": {netip.MustParseAddr("10.244.2.3"), netip.MustParseAddr("fd00:10:244:2::3")},
	}
	other := net.Node("there")
	for name, all := range addrs {
		full, on, at := api.Name{Namespace: name, Name: name}, n.Host, "here"
		if name == "remote" {
			on, at = other, "there"
		}
		n.compiler.SetPod(full, &api.Pod{Name: full, Node: at, Addrs: all})
		hosts[name] = net.Pod(on, name, all...)
		for _, a := range all {
			hosts[name].Serve("tcp", netip.AddrPortFrom(a, firstPort))
		}
	}
	return n, hosts, addrs
}

// With the option clients hear at once that they are denied: pods of the node, and those of others;
// what is allowed passes, and to switch the option off leaves nothing behind.
func TestReject(t *testing.T) {
	n, hosts, addrs := rejecting(t)
	for name, d := range map[string]networkpolicy.Direction{"in": networkpolicy.Ingress, "out": networkpolicy.Egress} {
		p := &networkpolicy.Policy{Name: api.Name{Namespace: name, Name: "deny"}}
		p.Isolates[d] = true
		n.compiler.SetPolicy(p.Name, p)
	}
	nodes := &networkpolicy.ClusterPolicy{Name: "nodes", Tier: networkpolicy.Admin, Subject: networkpolicy.Peer{Namespaces: &api.Selector{}}}
	nodes.Rules[networkpolicy.Egress] = []networkpolicy.ClusterRule{{Action: networkpolicy.Deny, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Nodes: &api.Selector{}}}}}}
	n.compiler.SetClusterPolicy("nodes", nodes)
	n.compiler.SetNode("here", &networkpolicy.Node{Name: "here", Addrs: n.Addrs})
	for _, a := range n.Addrs {
		n.Serve("tcp", netip.AddrPortFrom(a, firstPort))
	}
	addrs["node"] = n.Addrs
	n.sync(t)
	ask := func(from, to string, patience time.Duration, want testnet.Outcome) {
		t.Helper()
		for _, a := range addrs[to] {
			if got := hosts[from].Ask("tcp", netip.AddrPortFrom(a, firstPort), patience); got.Outcome != want {
				t.Errorf("%s to %s at %v: %v, want %v", from, to, a, got, want)
			}
		}
	}
	const long = 20 * time.Second
	ask("free", "in", long, testnet.Refused)
	ask("remote", "in", long, testnet.Refused)
	ask("out", "free", long, testnet.Refused)
	ask("out", "remote", long, testnet.Refused)
	ask("free", "node", long, testnet.Refused)
	ask("free", "out", long, testnet.Answered)
	ask("in", "remote", long, testnet.Answered)
	err := n.Do(func() error {
		counts, err := n.table.Denied(t.Context())
		if counts[networkpolicy.Egress] < 6 || counts[networkpolicy.Ingress] < 4 {
			t.Errorf("counted %v", counts)
		}
		if damaged, err := n.table.damaged(t.Context()); damaged || err != nil {
			t.Errorf("the table counts as damaged: %v, %v", damaged, err)
		}
		n.table.Close()
		n.table = New()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n.sync(t)
	ask("free", "in", testnet.Patience, testnet.Dropped)
	ask("free", "out", long, testnet.Answered)
	err = n.Do(func() error {
		chains, err := n.table.table.Chains(t.Context())
		if chains["forward"] || chains["rejected"] || chains["refused"] {
			t.Errorf("left behind: %v", chains)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
