package nftables

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestForwardedDiscovery: a pod sends ICMPv6 messages of the types of neighbour discovery and MLD to another pod. The
// node forwards them, so policies judge them as all packets.
func TestForwardedDiscovery(t *testing.T) {
	for _, reject := range []bool{false, true} {
		g := newGuarded(t)
		g.table.Reject = reject
		from, to := g.addrs["client"][1], g.addrs["web"][1]
		sender, receiver := icmpSocket(t, g.hosts["client"], from), icmpSocket(t, g.hosts["web"], to)
		g.sync(t)
		g.discover(sender, receiver, from, to, true)
		g.only() // isolates web
		g.discover(sender, receiver, from, to, false)
		g.compiler.SetPolicy(api.Name{Namespace: "x", Name: "web"}, nil)
		egress := &networkpolicy.Policy{Name: api.Name{Namespace: "x", Name: "client"}, Selector: *labelled("client")}
		egress.Isolates[networkpolicy.Egress] = true
		g.compiler.SetPolicy(egress.Name, egress)
		g.sync(t)
		g.discover(sender, receiver, from, to, false)
	}
}

// discover sends a message of each type with the usual hop limit and with the one of neighbour discovery. All messages
// must arrive, or none.
func (g *guarded) discover(sender, receiver *net.IPConn, from, to netip.Addr, want bool) {
	g.Helper()
	const text = "text"
	type message struct{ typ, hops byte }
	var sent, came []message
	for _, hops := range []byte{64, 255} {
		setHops(g.T, sender, hops)
		for _, typ := range []byte{130, 131, 132, 133, 134, 135, 136, 137, 143} {
			m := message{typ, hops}
			sent = append(sent, m)
			if _, err := sender.WriteTo(append([]byte{typ, 0, 0, 0, hops}, text...), &net.IPAddr{IP: to.AsSlice()}); err != nil {
				g.Fatal(err)
			}
		}
	}
	patience := testnet.Patience
	if want {
		patience = 20 * time.Second
	}
	if err := receiver.SetReadDeadline(time.Now().Add(patience)); err != nil {
		g.Fatal(err)
	}
	b := make([]byte, 1500)
	for !want || len(came) < len(sent) {
		n, peer, err := receiver.ReadFrom(b)
		if err != nil {
			break
		}
		if n == 5+len(text) && string(b[5:n]) == text && peer.String() == from.String() {
			came = append(came, message{b[0], b[4]})
		}
	}
	if want && !slices.Equal(came, sent) || !want && len(came) > 0 {
		g.Errorf("allowed %v, reject %v: of %v came %v", want, g.table.Reject, sent, came)
	}
}

// TestOwnDiscovery: neighbour discovery between the node and isolated pods works, whatever policies say.
func TestOwnDiscovery(t *testing.T) {
	g := newGuarded(t)
	g.only(networkpolicy.Peer{Pods: labelled("client")})
	deny := &networkpolicy.ClusterPolicy{Name: "nodes", Tier: networkpolicy.Admin, Subject: networkpolicy.Peer{Namespaces: &api.Selector{}}}
	deny.Rules[networkpolicy.Egress] = []networkpolicy.ClusterRule{{Action: networkpolicy.Deny, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Nodes: &api.Selector{}}}}}}
	g.compiler.SetClusterPolicy("nodes", deny)
	g.sync(t)
	// The node's ends of the links get the gateway's address, and nobody knows the other's MAC address.
	run := func(h *testnet.Host, args ...string) {
		t.Helper()
		err := h.Do(func() error { return exec.CommandContext(t.Context(), "ip", append([]string{"-6"}, args...)...).Run() })
		if err != nil {
			t.Fatal(args, err)
		}
	}
	err := g.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if strings.HasPrefix(l.Name, "veth") {
				run(g.Host, "addr", "add", "fe80::1/64", "dev", l.Name, "nodad")
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*testnet.Host{g.Host, g.hosts["web"], g.hosts["client"]} {
		run(h, "neigh", "flush", "nud", "all")
	}
	g.ask("client", "web", true)
}

func icmpSocket(t *testing.T, h *testnet.Host, a netip.Addr) *net.IPConn {
	t.Helper()
	c := rawSocketOf(t, h, "ip6:58", a)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.IPConn)
}

// setHops sets the hop limit of a socket's packets.
func setHops(t *testing.T, c *net.IPConn, hops byte) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, int(hops))
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
