package networkpolicy_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// webFromClients returns a compiler of node-1 with a pod web at here. Only pods app=client may connect to it.
func webFromClients() *networkpolicy.Compiler {
	c := networkpolicy.New("node-1")
	c.SetPod(named("web"), &api.Pod{Name: named("web"), Node: "node-1", Created: time.Unix(1, 0), Labels: map[string]string{"app": "web"}, Addrs: []netip.Addr{here},
		Ports: []api.NamedPort{{Name: "http", Proto: api.TCP, Number: 80}}})
	c.SetPolicy(named("web"), &networkpolicy.Policy{Name: named("web"), Selector: *app("web"), Isolates: [2]bool{networkpolicy.Ingress: true},
		Rules: [2][]networkpolicy.Rule{networkpolicy.Ingress: {{Peers: []networkpolicy.Peer{{Pods: app("client")}}}}}})
	return c
}

// claim sets a mirror pod of a node with the label app=client, newer than all others.
func claim(c *networkpolicy.Compiler, node string, addrs ...netip.Addr) {
	name := named("client-" + node)
	c.SetPod(name, &api.Pod{Name: name, Node: node, Created: time.Unix(9, 0), Labels: map[string]string{"app": "client"}, Addrs: addrs})
}

// TestPodOfAnotherNodeTakesNoIsolation: next to another CNI plugin, a kubelet claims the address of this node's pod.
func TestPodOfAnotherNodeTakesNoIsolation(t *testing.T) {
	c := webFromClients()
	claim(c, "rogue", here)
	if allows(c, there, here) {
		t.Error("the pod of another node took the isolation from this node's pod")
	}
	c.SetPod(named("client-rogue"), nil)
	if allows(c, there, here) {
		t.Error("the pod is open after the claim has ended")
	}
}

// TestPeerOfTwoNodes: an address that pods of two nodes claim belongs to neither as a peer, in whatever order they come.
func TestPeerOfTwoNodes(t *testing.T) {
	bad := &api.Pod{Name: named("bad"), Node: "node-3", Created: time.Unix(1, 0), Addrs: []netip.Addr{there}}
	for _, first := range []bool{true, false} {
		c := webFromClients()
		if first {
			c.SetPod(bad.Name, bad)
		}
		claim(c, "rogue", there)
		if !first {
			if !allows(c, there, here) {
				t.Fatal("a client is denied")
			}
			c.SetPod(bad.Name, bad)
		}
		if allows(c, there, here) {
			t.Errorf("bad first %t: another node's claim lends its labels to the pod", first)
		}
		c.SetPod(named("client-rogue"), nil)
		claim(c, "node-3", there)
		if !allows(c, there, here) {
			t.Errorf("bad first %t: of two pods of one node the newer does not count", first)
		}
	}
}
