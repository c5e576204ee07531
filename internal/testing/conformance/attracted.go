package conformance

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// attracted: the router leads an address to the node, and the node's default route is the router. A packet that no
// Service port takes must not go back to the router, which would return it until its TTL is used up. Addresses of nodes
// keep their other ports.
func (s suite) attracted(t testing.TB) {
	r := sixRig(t, s)
	r.asksTooEarly()
	w := &scenario.World
	frontend := func(addr netip.Addr, loadBalancer, onNode bool) *service.Frontend {
		f := web("web", netip.AddrPortFrom(addr, 80).String(), api.TCP)
		f.LoadBalancer, f.OnNode = loadBalancer, onNode
		return f
	}
	vip4, vip6, external := netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8:9::5"), netip.MustParseAddr("203.0.113.6")
	report(t, r.sync(tableOf(frontend(vip4, true, false), frontend(vip6, true, false), frontend(external, false, false),
		frontend(w.Peer.V4, true, true), frontend(w.Extra.V4, true, false))))
	for addr, host := range map[netip.Addr]*testnet.Host{w.Peer.V4: r.peer, w.Extra.V4: r.node} {
		to := netip.AddrPortFrom(addr, 2222)
		host.Serve("tcp", to)
		for _, from := range []scenario.Place{w.Pod, w.Node, w.Outside} {
			if got := r.hosts[from.V4].Ask("tcp", to, s.patience); got.Outcome != testnet.Answered {
				t.Errorf("from %s to %v, which a node has: %v", from.Name, to, got)
			}
		}
	}
	for _, to := range []netip.Addr{vip4, vip6, external} {
		for _, from := range []scenario.Place{w.Outside, w.PodRemote, w.Peer, w.Pod} {
			r.goesRoundOnce(from, to, "tcp")
			r.goesRoundOnce(from, to, "udp")
			r.goesRoundOnce(from, to, "ping")
		}
		// The node sends its own packets to the router, because another machine may have the address.
		r.goesRoundOnce(w.Node, to, "ping")
	}
}

// goesRoundOnce sends a packet to an unused port, or an ICMP echo, and wants the router to forward it once. The client
// is refused.
func (r *rig) goesRoundOnce(from scenario.Place, to netip.Addr, what string) {
	client := r.hosts[from.Addr(to.Is4())]
	forwarded := r.net.Fabric.CountForwarded(to)
	if what == "ping" {
		if err := client.Ping(to); err != nil {
			r.t.Errorf("ping from %s to %v: %v", from.Name, to, err)
		}
	} else if got := client.Ask(what, netip.AddrPortFrom(to, 81), r.suite.patience); got.Outcome != testnet.Refused {
		r.t.Errorf("%s from %s to port 81 of %v: %v, want refused", what, from.Name, to, got)
	}
	want := 1
	if from.Name == scenario.World.Pod.Name {
		want = 0 // its node refuses it
	}
	if n := forwarded(); n != want {
		r.t.Errorf("the router forwarded a packet (%s) from %s to %v %d times, want %d", what, from.Name, to, n, want)
	}
}

// asksTooEarly: a pod connects to an address before a Service has it, so its first packet leaves the node untranslated.
// conntrack then translates none of its next packets. A refusal would end the client's connection. Package flow deletes
// the entry, and the client's next packet is translated.
func (r *rig) asksTooEarly() {
	to := netip.MustParseAddrPort("192.0.2.7:80")
	seen := r.net.Fabric.CountDropped(to.Addr())
	report(r.t, r.sync(tableOf()))
	done := make(chan testnet.Answer, 1)
	go func() { done <- r.hosts[scenario.World.Pod.V4].Ask("tcp", to, 3*time.Second) }() // the client tries again after a second
	for end := time.Now().Add(r.suite.patience); seen() == 0; {
		if time.Now().After(end) {
			r.t.Fatal("no packet of the pod left the node")
		}
	}
	f := web("early", to.String(), api.TCP, 0)
	report(r.t, r.sync(tableOf(f)))
	if got := <-done; got.Outcome == testnet.Refused {
		r.t.Errorf("a pod that asked for an address before its Service was there is refused")
	}
}
