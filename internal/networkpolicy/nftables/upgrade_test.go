package nftables

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestUpgradeStaysClosed: a pod to which everything is denied sends and sends while the program is replaced by
// another one and back, and sometimes the agent is killed before it writes. No packet passes.
func TestUpgradeStaysClosed(t *testing.T) {
	network := testnet.New(t)
	n := network.Node("here")
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:244:1::1")}
	targets := []netip.Addr{netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")}
	pod, sink := network.Pod(n, "pod", addrs...), network.Pod(n, "sink", targets...)
	old, now := networkpolicy.New("here"), networkpolicy.New("here")
	deny := api.Name{Namespace: "x", Name: "deny"}
	for _, c := range []*networkpolicy.Compiler{old, now} {
		for name, all := range map[string][]netip.Addr{"pod": addrs, "sink": targets} {
			full := api.Name{Namespace: "x", Name: name}
			c.SetPod(full, &api.Pod{Name: full, Node: "here", Labels: map[string]string{"app": name}, Addrs: all})
		}
		// Grants for ports that nobody sends to.
		c.SetPolicy(deny, &networkpolicy.Policy{Name: deny, Isolates: [2]bool{true, true}, Selector: equals("app", "pod"),
			Rules: [2][]networkpolicy.Rule{networkpolicy.Egress: {{Ports: []networkpolicy.Port{{Proto: api.TCP, First: 1, Last: 9}}}}}})
	}
	now.SetClusterPolicy("denies", &networkpolicy.ClusterPolicy{Name: "denies", Tier: networkpolicy.Admin, Subject: networkpolicy.Peer{Namespaces: &api.Selector{}},
		Rules: [2][]networkpolicy.ClusterRule{networkpolicy.Egress: {{Action: networkpolicy.Deny, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Namespaces: &api.Selector{}}}, Ports: []networkpolicy.Port{{Proto: api.UDP, First: 8000, Last: 9999}}}}}}})
	oldTable, _ := old.Compile()
	newTable, _ := now.Compile()
	// upgrade does what an agent does that starts, with the program that rejects or the one that does not.
	upgrade := func(reject bool, want *networkpolicy.Table, killed bool) {
		t.Helper()
		err := n.Do(func() error {
			table := New()
			table.Reject = reject
			defer table.Close()
			if _, err := table.Adopt(t.Context()); err != nil || killed {
				return err
			}
			_, err := table.Sync(t.Context(), want, nil)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	upgrade(true, oldTable, false)

	got, sent, end := listenAndSend(t, pod, sink, targets)
	for round := range 8 {
		upgrade(false, newTable, round%3 == 2)
		upgrade(true, oldTable, false)
	}
	for start := time.Now(); sent.Load() < 2000 && time.Since(start) < 30*time.Second; {
		time.Sleep(time.Millisecond)
	}
	if t.Logf("%d packets sent", sent.Load()); sent.Load() < 2000 || got.Load() > 0 {
		t.Errorf("%d packets of a denied pod sent, %d came", sent.Load(), got.Load())
	}
	now.SetPolicy(deny, nil)
	now.SetClusterPolicy("denies", nil)
	newTable, _ = now.Compile()
	upgrade(false, newTable, false)
	for start := time.Now(); got.Load() == 0 && time.Since(start) < 30*time.Second; {
		time.Sleep(time.Millisecond)
	}
	if end(); got.Load() == 0 {
		t.Error("nothing denies, and no packet comes")
	}
}

// listenAndSend lets a pod send datagrams to a sink until end, and counts what is sent and what
// comes.
func listenAndSend(t *testing.T, pod, sink *testnet.Host, targets []netip.Addr) (got, sent *atomic.Int64, end func()) {
	t.Helper()
	got, sent = new(atomic.Int64), new(atomic.Int64)
	var wg sync.WaitGroup
	var all []net.PacketConn
	ended := make(chan struct{})
	open := func(h *testnet.Host, at string) net.PacketConn {
		var c net.PacketConn
		err := h.Do(func() (err error) { c, err = net.ListenPacket("udp", at); return err })
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		return c
	}
	for _, to := range targets {
		at := netip.AddrPortFrom(to, 9000)
		in := open(sink, at.String())
		wg.Go(func() {
			buffer := make([]byte, 100)
			for {
				if _, _, err := in.ReadFrom(buffer); err != nil {
					return
				}
				got.Add(1)
			}
		})
		out := open(pod, fmt.Sprintf("[%v]:0", pod.Addr(to.Is4())))
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				case <-time.After(100 * time.Microsecond):
				}
				if _, err := out.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(at)); err == nil {
					sent.Add(1)
				}
			}
		})
	}
	var once sync.Once
	end = func() {
		once.Do(func() {
			close(ended)
			for _, c := range all {
				_ = c.Close()
			}
			wg.Wait()
		})
	}
	t.Cleanup(end)
	return got, sent, end
}
