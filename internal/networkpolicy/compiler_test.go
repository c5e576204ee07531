package networkpolicy_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

var (
	here  = netip.MustParseAddr("10.244.1.5")
	there = netip.MustParseAddr("10.244.2.5")
)

func named(name string) api.Name { return api.Name{Namespace: "default", Name: name} }

func denyAll() *networkpolicy.Policy {
	return &networkpolicy.Policy{Name: named("deny-all"), Isolates: [2]bool{true, true}}
}

func app(name string) *api.Selector {
	return &api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{name}}}}
}

// allows says whether a packet from one address to another passes.
func allows(c *networkpolicy.Compiler, from, to netip.Addr) bool {
	t, _ := c.Compile()
	return networkpolicy.Lookup(t, networkpolicy.Packet{Src: from, Dst: to, Proto: api.TCP, Port: 80}).Allowed()
}

// CVE-2024-7598: the policies of a namespace that is being deleted are deleted before its pods.
func TestNamespaceDeletion(t *testing.T) {
	c := networkpolicy.New("node-1")
	c.SetNamespace("default", &api.Namespace{Name: "default"})
	c.SetPod(named("web"), &api.Pod{Name: named("web"), Node: "node-1", Addrs: []netip.Addr{here}})
	c.SetPolicy(named("deny-all"), denyAll())
	if allows(c, there, here) {
		t.Fatal("the policy denies nothing")
	}
	c.SetNamespace("default", &api.Namespace{Name: "default", Terminating: true})
	c.SetPolicy(named("deny-all"), nil)
	if allows(c, there, here) {
		t.Error("the pod of a namespace that is being deleted is open")
	}
	// The next agent cannot know it; this one lets go with the pod.
	c.SetPod(named("web"), nil)
	c.SetPod(named("other"), &api.Pod{Name: named("other"), Node: "node-1", Addrs: []netip.Addr{here}})
	if !allows(c, there, here) {
		t.Error("the deleted policy outlives the pods of its namespace")
	}
}

// A policy that is deleted in a namespace that lives isolates nobody any more.
func TestPolicyDeletion(t *testing.T) {
	c := networkpolicy.New("node-1")
	c.SetNamespace("default", &api.Namespace{Name: "default"})
	c.SetPod(named("web"), &api.Pod{Name: named("web"), Node: "node-1", Addrs: []netip.Addr{here}})
	c.SetPolicy(named("deny-all"), denyAll())
	c.Compile()
	c.Take()
	c.SetPolicy(named("deny-all"), nil)
	if _, changes := c.Compile(); changes.Revoked || !allows(c, there, here) {
		t.Errorf("the pod is isolated, or its connections are ended: %+v", changes)
	}
}

// A finished pod's address is another pod's: of two pods that say they have it, the newer one.
func TestOwner(t *testing.T) {
	c := networkpolicy.New("node-1")
	c.SetPod(named("web"), &api.Pod{Name: named("web"), Node: "node-1", Labels: map[string]string{"app": "web"}, Addrs: []netip.Addr{here}})
	c.SetPolicy(named("web"), &networkpolicy.Policy{Name: named("web"), Selector: *app("web"), Isolates: [2]bool{networkpolicy.Ingress: true},
		Rules: [2][]networkpolicy.Rule{networkpolicy.Ingress: {{Peers: []networkpolicy.Peer{{Pods: app("client")}}}}}})
	client := func(name, label string, created int64, addrs ...netip.Addr) {
		c.SetPod(named(name), &api.Pod{Name: named(name), Node: "node-2", Labels: map[string]string{"app": label}, Created: time.Unix(created, 0), Addrs: addrs})
	}
	client("old", "client", 1, there)
	if !allows(c, there, here) {
		t.Fatal("the client is denied")
	}
	client("new", "stranger", 2, there)
	if allows(c, there, here) {
		t.Error("the older pod counts")
	}
	client("new", "stranger", 2) // it has finished
	if !allows(c, there, here) {
		t.Error("a pod without an address counts")
	}
	client("old", "client", 1) // as well
	if allows(c, there, here) {
		t.Error("nobody has the address, and it counts as the client")
	}
}

// A pod that is born is closed until it is known, by its UID: an older pod of the name is
// another one. Afterwards its labels count before its status has the address.
func TestSandbox(t *testing.T) {
	c := networkpolicy.New("node-1")
	c.SetPolicy(named("web"), &networkpolicy.Policy{Name: named("web"), Selector: *app("web"), Isolates: [2]bool{networkpolicy.Ingress: true},
		Rules: [2][]networkpolicy.Rule{networkpolicy.Ingress: {{}}}})
	pod := &api.Pod{Name: named("web-0"), UID: "1", Node: "node-1", Labels: map[string]string{"app": "web"}}
	c.SetPod(pod.Name, pod)
	c.SetSandbox(here, &networkpolicy.Sandbox{Pod: pod.Name, UID: "2", Container: "a"})
	if allows(c, there, here) || allows(c, here, there) {
		t.Error("a pod that is not known is open")
	}
	again := *pod
	again.UID = "2"
	c.SetPod(pod.Name, &again)
	table, _ := c.Compile()
	if !allows(c, there, here) || !allows(c, here, there) || !table.Isolated[networkpolicy.Ingress][here] || table.Isolated[networkpolicy.Egress][here] {
		t.Error("the labels of a pod that is known do not count")
	}
	c.SetPod(pod.Name, nil) // deleted by force: its containers may run
	if allows(c, there, here) || allows(c, here, there) {
		t.Error("a sandbox whose pod is gone is open")
	}
	c.SetSandbox(here, nil)
	if table, _ := c.Compile(); len(table.Isolated[0])+len(table.Isolated[1])+len(table.Sandboxes)+len(table.Classes) > 0 {
		t.Errorf("after DEL: %+v", table)
	}
}

// An empty set denies, IPv6 is not IPv4, and a pod reaches itself.
func TestEmpty(t *testing.T) {
	c := networkpolicy.New("node-1")
	six := netip.MustParseAddr("fd00::1")
	c.SetPod(named("web"), &api.Pod{Name: named("web"), Node: "node-1", Addrs: []netip.Addr{here, six}})
	all := &networkpolicy.Block{CIDR: netip.MustParsePrefix("0.0.0.0/0")}
	c.SetPolicy(named("out"), &networkpolicy.Policy{Name: named("out"), Isolates: [2]bool{networkpolicy.Egress: true},
		Rules: [2][]networkpolicy.Rule{networkpolicy.Egress: {{Peers: []networkpolicy.Peer{{Block: all}}}, {NoPeer: true}, {Peers: []networkpolicy.Peer{{Pods: app("none")}}}}}})
	if !allows(c, here, there) || allows(c, six, netip.MustParseAddr("fd00::2")) || !allows(c, six, six) {
		t.Error("0.0.0.0/0 is IPv4, and only that")
	}
}
