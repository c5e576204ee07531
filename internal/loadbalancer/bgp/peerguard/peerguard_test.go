package peerguard

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// routerPorts are the ports that a router serves in these tests.
var routerPorts = map[string][]uint16{"tcp": {179, 180, 1790}, "udp": {179, 3784, 4784}}

// checkPorts asks all ports of a router. The ports in dropped must not answer.
func checkPorts(t *testing.T, when string, from *testnet.Host, router []netip.Addr, dropped map[string]bool) {
	t.Helper()
	for _, a := range router {
		for network, all := range routerPorts {
			for _, p := range all {
				at, want, patience := netip.AddrPortFrom(a, p), testnet.Answered, 10*time.Second
				if dropped[fmt.Sprint(network, p)] {
					want, patience = testnet.Dropped, testnet.Patience
				}
				if got := from.Ask(network, at, patience); got.Outcome != want {
					t.Errorf("%s: %s %v: %v, want %v", when, network, at, got, want)
				}
			}
		}
	}
}

// TestPeers: a pod whose packets the node masquerades does not reach the BGP and BFD ports of a router. The node itself
// does, and the pod reaches other ports, and the same ports with its own address.
func TestPeers(t *testing.T) {
	testnet.NeedRoot(t, "makes network namespaces")
	n := testnet.New(t)
	node := n.Node("node")
	pod := n.Pod(node, "pod", netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2"))
	nft := func(text string) (out string) {
		t.Helper()
		err := node.Do(func() error {
			b, err := exec.Command("nft", text).CombinedOutput()
			out = string(b)
			return err
		})
		if err != nil {
			t.Fatalf("nft %s: %v: %s", text, err, out)
		}
		return out
	}
	nft("table inet cni { chain postrouting { type nat hook postrouting priority srcnat; ip daddr 198.51.100.0/24 masquerade; ip6 daddr 2001:db8:51::/64 masquerade; }; }")
	for _, a := range n.Outside.Addrs {
		for network, all := range routerPorts {
			for _, p := range all {
				n.Outside.Serve(network, netip.AddrPortFrom(a, p))
			}
		}
	}
	check := func(when string, from *testnet.Host, dropped map[string]bool) {
		t.Helper()
		checkPorts(t, when, from, n.Outside.Addrs, dropped)
	}
	guarded := map[string]bool{"tcp179": true, "udp3784": true, "udp4784": true}
	check("without rules", pod, nil)

	g := New(slog.New(slog.DiscardHandler))
	sync := func(routers ...netip.AddrPort) {
		t.Helper()
		g.Set(routers)
		if err := node.Do(func() error { return g.sync(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(g.table.Close)
	both := []netip.AddrPort{netip.AddrPortFrom(n.Outside.Addrs[0], 179), netip.AddrPortFrom(n.Outside.Addrs[1], 179)}
	sync(both...)
	check("masqueraded", pod, guarded)
	check("the node itself", node, nil)

	again := New(slog.New(slog.DiscardHandler)) // the next speaker, before it knows the routers
	if err := node.Do(func() error { return again.sync(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	check("while the speaker starts", pod, guarded)
	nft("flush ruleset")
	sync(both...)
	check("with its own address", pod, nil)
	nft("table inet cni { chain postrouting { type nat hook postrouting priority srcnat; ip daddr 198.51.100.0/24 masquerade; ip6 daddr 2001:db8:51::/64 masquerade; }; }")
	check("after another program has removed the rules", pod, guarded)
	sync(netip.AddrPortFrom(n.Outside.Addrs[0], 1790), netip.AddrPortFrom(n.Outside.Addrs[1], 1790))
	check("another port", pod, map[string]bool{"tcp1790": true, "udp3784": true, "udp4784": true})
	sync()
	if out := nft("list tables"); strings.Contains(out, "fairway-peers") {
		t.Errorf("without routers there is still a table:\n%s", out)
	}
	check("without routers", pod, nil)
}

// TestRun: Run writes what Set says, and ends with its context.
func TestRun(t *testing.T) {
	testnet.NeedRoot(t, "makes network namespaces")
	testnet.Enter(t)
	g := New(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	g.Set([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:179"), netip.MustParseAddrPort("[fe80::1%eth0]:179")})
	time.AfterFunc(time.Second, cancel)
	if err := g.Run(ctx); err != nil { // on this thread, which is in a namespace of its own
		t.Fatal(err)
	}
	out, err := exec.Command("nft", "list", "table", "inet", "fairway-peers").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "192.0.2.1 . tcp . 179") || !strings.Contains(string(out), "fe80::1 . udp . 4784") {
		t.Errorf("%v:\n%s", err, out)
	}
	if err := Remove(context.WithoutCancel(ctx)); err != nil {
		t.Error(err)
	}
}
