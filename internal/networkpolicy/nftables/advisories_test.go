package nftables

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/checksum"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A guarded is a node with the pods web, client and stranger, of which web serves.
type guarded struct {
	*testing.T
	*node
	hosts map[string]*testnet.Host
	addrs map[string][]netip.Addr
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	net := testnet.New(t)
	g := &guarded{T: t, node: &node{net.Node("here"), networkpolicy.New("here"), New()}, hosts: map[string]*testnet.Host{}, addrs: map[string][]netip.Addr{}}
	t.Cleanup(g.table.Close)
	g.compiler.SetNode("here", &networkpolicy.Node{Name: "here", Addrs: g.Addrs})
	for i, name := range []string{"web", "client", "stranger"} {
		all := []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(1 + i)}), netip.MustParseAddr("fd00:10:244:1::" + string(rune('1'+i)))}
		full := api.Name{Namespace: "x", Name: name}
		g.compiler.SetPod(full, &api.Pod{Name: full, Node: "here", Addrs: all, Labels: map[string]string{"app": name}})
		g.hosts[name], g.addrs[name] = net.Pod(g.Host, name, all...), all
		for _, a := range all {
			g.hosts[name].Serve("tcp", netip.AddrPortFrom(a, firstPort))
		}
	}
	return g
}

// only isolates web, and lets these peers in.
func (g *guarded) only(peers ...networkpolicy.Peer) {
	p := &networkpolicy.Policy{Name: api.Name{Namespace: "x", Name: "web"}, Selector: *labelled("web"), Isolates: [2]bool{networkpolicy.Ingress: true}}
	p.Rules[networkpolicy.Ingress] = []networkpolicy.Rule{{Peers: peers, NoPeer: len(peers) == 0}}
	g.compiler.SetPolicy(p.Name, p)
	g.sync(g.T)
}

func labelled(app string) *api.Selector {
	return &api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{app}}}}
}

// ask wants an answer, or silence, in both families.
func (g *guarded) ask(from, to string, want bool) {
	g.Helper()
	for _, a := range g.addrs[to] {
		patience := 20 * time.Second
		if !want {
			patience = testnet.Patience
		}
		if got := g.hosts[from].Ask("tcp", netip.AddrPortFrom(a, firstPort), patience); (got.Outcome == testnet.Answered) != want {
			g.Errorf("%s to %s at %v: want allowed %v, and %v", from, to, a, want, got)
		}
	}
}

// What others published as faults of theirs, by the names that it has there. Those that are about
// Services are conformance.RunPolicies': CVE-2023-27594 (clients of an IPv6 NodePort taken for the
// node) and CVE-2026-33726 (a proxy between pods of one node past ingress policies). CVE-2024-7598
// is TestNamespaceDeletion.
func TestAdvisories(t *testing.T) {
	t.Run("CVE-2025-64715", func(t *testing.T) { // rules whose peers are nobody allowed all
		g := newGuarded(t)
		g.ask("stranger", "web", true)
		g.only(networkpolicy.Peer{Pods: labelled("nobody")})
		g.ask("stranger", "web", false)
		g.only()
		g.ask("stranger", "web", false)
	})
	t.Run("CVE-2026-56743", func(t *testing.T) { // peers that are blocks became every address
		g := newGuarded(t)
		block := func(a netip.Addr) networkpolicy.Peer {
			return networkpolicy.Peer{Block: &networkpolicy.Block{CIDR: netip.PrefixFrom(a, a.BitLen())}}
		}
		g.only(block(g.addrs["client"][0]), block(g.addrs["client"][1]))
		g.ask("client", "web", true)
		g.ask("stranger", "web", false)
		g.only(block(g.addrs["client"][0])) // one family says nothing about the other
		g.ask("stranger", "web", false)
		if got := g.hosts["client"].Ask("tcp", netip.AddrPortFrom(g.addrs["web"][1], firstPort), testnet.Patience); got.Outcome == testnet.Answered {
			t.Errorf("a block of IPv4 opens IPv6: %v", got)
		}
	})
	t.Run("CVE-2025-30163", func(t *testing.T) { // peers that are nodes were the pods there, too
		g := newGuarded(t)
		nodes := &networkpolicy.ClusterPolicy{Name: "nodes", Tier: networkpolicy.Admin, Subject: networkpolicy.Peer{Namespaces: &api.Selector{}}}
		nodes.Rules[networkpolicy.Egress] = []networkpolicy.ClusterRule{
			{Action: networkpolicy.Accept, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Nodes: &api.Selector{}}}}},
			{Action: networkpolicy.Deny, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Namespaces: &api.Selector{}}}}},
		}
		g.compiler.SetClusterPolicy("nodes", nodes)
		g.sync(t)
		g.ask("stranger", "web", false)
		for _, a := range g.Addrs {
			g.Serve("tcp", netip.AddrPortFrom(a, firstPort))
			if got := g.hosts["stranger"].Ask("tcp", netip.AddrPortFrom(a, firstPort), 20*time.Second); got.Outcome != testnet.Answered {
				t.Errorf("to the node at %v: %v", a, got)
			}
		}
	})
	t.Run("GHSA-c66w-hq56-4q97", func(t *testing.T) { // answers of ICMP to nothing passed
		g := newGuarded(t)
		g.replies("stranger", "web", true)
		g.only(networkpolicy.Peer{Pods: labelled("client")})
		g.replies("client", "web", true)
		g.replies("stranger", "web", false)
	})
}

// replies sends an ICMP echo reply of each family that nobody asked for, which must come or not.
func (g *guarded) replies(from, to string, want bool) {
	g.Helper()
	for i, network := range []string{"ip4:icmp", "ip6:ipv6-icmp"} {
		target := g.addrs[to][i]
		listener, sender := rawSocketOf(g.T, g.hosts[to], network, target), rawSocketOf(g.T, g.hosts[from], network, g.addrs[from][i])
		message := []byte{0, 0, 0, 0, 0x12, 0x34, 0, 1, 'f', 'w'}
		if i == 1 {
			message[0] = 129 // its checksum is the kernel's work
		} else {
			binary.BigEndian.PutUint16(message[2:], checksum.Of(message))
		}
		patience := 30 * time.Second
		if !want {
			patience = testnet.Patience
		}
		if _, err := sender.WriteTo(message, &net.IPAddr{IP: target.AsSlice()}); err != nil {
			g.Fatal(err)
		}
		if err := listener.SetReadDeadline(time.Now().Add(patience)); err != nil {
			g.Fatal(err)
		}
		came := false
		for b := make([]byte, 1500); !came; {
			n, _, err := listener.ReadFrom(b)
			if err != nil {
				break
			}
			came = n >= 8 && b[0] == message[0] && bytes.Equal(b[4:8], message[4:8])
		}
		if came != want {
			g.Errorf("%s: an answer of %s to %s that nobody asked for came: %v, want %v", network, from, to, came, want)
		}
		_, _ = listener.Close(), sender.Close()
	}
}
