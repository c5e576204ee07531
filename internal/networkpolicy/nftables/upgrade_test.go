package nftables

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// formerProgram is that of d5cadfc, before ClusterNetworkPolicies.
func formerProgram(t *testing.T) *nft.Ruleset {
	t.Helper()
	source, err := os.ReadFile("testdata/d5cadfc.nft")
	if err != nil {
		t.Fatal(err)
	}
	data := program(false).Data
	data["Directions"] = []object{{"Name": "egress", "Local": "saddr", "Peer": "daddr", "Denied": "0:3"}, {"Name": "ingress", "Local": "daddr", "Peer": "saddr", "Denied": "0:4"}}
	return &nft.Ruleset{Source: string(source), Data: data}
}

// syncFormer does what an agent of d5cadfc does that starts.
func syncFormer(ctx context.Context, p *nft.Ruleset, want *networkpolicy.Table) error {
	t := New()
	defer t.Close()
	if _, err := t.table.Load(ctx, p, false); err != nil { // it adopts
		return err
	}
	return t.watch.Keep(ctx, p, func(context.Context) (bool, error) { return false, nil }, func(ctx context.Context) error {
		have := map[[3]string]element{}
		for _, set := range t.sets() {
			if strings.HasPrefix(set, "cluster-") {
				continue
			}
			err := t.table.Elements(ctx, set, func(e nft.Element) error {
				el := element{set, string(e.Key), string(e.Last), string(e.Data), e.Comment}
				if set == "decisions" {
					el.data = ""
				}
				have[el.id()] = el
				return nil
			})
			if err != nil {
				return err
			}
		}
		if err := t.readOrder(ctx); err != nil {
			return err
		}
		var ws []nft.Write
		t.wantedElements(want, func(e element) {
			old, had := have[e.id()]
			if delete(have, e.id()); !had || old != e {
				ws = replace(ws, old, e, had, true)
			}
		})
		for _, e := range have {
			ws = append(ws, e.write(false))
		}
		return t.table.Commit(ctx, t.addVerdicts, ws)
	})
}

// A pod to which everything is denied sends and sends while the program is replaced by this
// release's, by the former one again, and so on: no packet comes out.
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
	former := formerProgram(t)
	must := func(f func() error) {
		t.Helper()
		if err := n.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	must(func() error { return syncFormer(t.Context(), former, oldTable) })

	got, sent, end := listenAndSend(t, pod, sink, targets)
	for round := range 8 {
		must(func() error {
			table := New()
			defer table.Close()
			if _, err := table.Adopt(t.Context()); err != nil || round%3 == 2 {
				return err // killed before it writes
			}
			_, err := table.Sync(t.Context(), newTable, nil)
			return err
		})
		must(func() error { return syncFormer(t.Context(), former, oldTable) })
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
	must(func() error {
		table := New()
		defer table.Close()
		_, err := table.Sync(t.Context(), newTable, nil)
		return err
	})
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
