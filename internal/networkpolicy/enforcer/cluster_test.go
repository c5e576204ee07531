package enforcer

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func (o *objects) setClusterPolicy(p *networkpolicy.ClusterPolicy) {
	o.change(func() {
		o.ClusterPolicies[p.Name] = p
		o.changed.ClusterPolicies = append(o.changed.ClusterPolicies, p.Name)
	})
}

// A ClusterNetworkPolicy that denies ends the connections that it denies, also those to the
// node; the others live on, also those that an Accept keeps.
func TestClusterPolicyRevokes(t *testing.T) {
	r := newRig(t)
	client, web, other := r.pod("client", clientAddr, nil), r.pod("web", webAddr, map[string]string{"app": "web"}), r.pod("other", otherAddr, nil)
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 8080) }
	nodeAddr := r.node.Addr(true)
	for addr, h := range map[netip.Addr]*testnet.Host{webAddr: web, otherAddr: other, nodeAddr: r.node} {
		h.Serve("tcp", at(addr))
	}
	r.ask(isolate.Request{Command: isolate.Delete, Container: "none"})
	toWeb, toOther, toNode := r.connect(client, at(webAddr)), r.connect(client, at(otherAddr)), r.connect(client, at(nodeAddr))
	r.source.change(func() {
		r.source.Nodes["node-1"] = &networkpolicy.Node{Name: "node-1", Addrs: []netip.Addr{nodeAddr}}
		r.source.changed.Nodes = append(r.source.changed.Nodes, "node-1")
	})
	isWeb := &api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"web"}}}}
	all := &api.Selector{}
	p := &networkpolicy.ClusterPolicy{Name: "deny", Tier: networkpolicy.Admin, Subject: networkpolicy.Peer{Namespaces: all}}
	p.Rules[networkpolicy.Egress] = []networkpolicy.ClusterRule{
		{Action: networkpolicy.Accept, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Namespaces: all, Pods: isWeb}}}},
		{Action: networkpolicy.Deny, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Namespaces: all}, {Nodes: all}}}},
	}
	r.source.setClusterPolicy(p)
	for name, c := range map[string]*testnet.Conn{"a pod": toOther, "the node": toNode} {
		if err := c.Wait(30 * time.Second); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the connection to %s ends with %v, want a reset", name, err)
		}
	}
	if a := toWeb.Ask(20 * time.Second); a.Outcome != testnet.Answered {
		t.Errorf("the connection that is accepted: %v", a)
	}
	if a := client.Ask("tcp", at(nodeAddr), testnet.Patience); a.Outcome != testnet.Dropped {
		t.Errorf("a new connection to the node: %v", a)
	}
}
