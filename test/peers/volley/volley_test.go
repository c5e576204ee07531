package volley

import (
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// TestFire sends probes of every kind through a node that translates, refuses, swallows
// and forwards.
func TestFire(t *testing.T) {
	n := testnet.New(t)
	n.SendEveryICMPError()
	node, peer := n.Node("node"), n.Node("peer")
	four, six := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244:1::5")
	pod := n.Pod(node, "pod", four, six)
	for _, a := range pod.Addrs {
		pod.Serve("tcp", netip.AddrPortFrom(a, 8080))
		pod.Serve("udp", netip.AddrPortFrom(a, 8080))
	}
	rules := `table inet t {
		chain in {
			type nat hook prerouting priority dstnat
			meta l4proto {tcp, udp, sctp} th dport 80 meta nfproto ipv4 dnat ip to 10.244.1.5:8080
			meta l4proto {tcp, udp, sctp} th dport 80 meta nfproto ipv6 dnat ip6 to [fd00:10:244:1::5]:8080
		}
		chain verdicts {
			type filter hook input priority filter
			meta l4proto {tcp, udp, sctp} th dport 81 reject
			meta l4proto {tcp, udp, sctp} th dport 82 drop
		}
	}`
	if err := node.Do(func() error { return exec.Command("nft", rules).Run() }); err != nil {
		t.Fatalf("nft: %v", err)
	}
	f, err := New(8080)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	stations := map[string]*Station{}
	for _, h := range []*testnet.Host{node, peer, pod} {
		if stations[h.Name], err = f.Join(h.Name, h.Do); err != nil {
			t.Fatal(err)
		}
	}
	want := map[uint16]Verdict{80: Answered, 81: Refused, 82: Silence, 83: Reset}
	var probes []Probe
	for _, is4 := range []bool{true, false} {
		for _, proto := range []api.Proto{api.TCP, api.UDP, api.SCTP} {
			for port, v := range want {
				probes = append(probes, Probe{
					From: stations["peer"], Src: peer.Addr(is4), To: netip.AddrPortFrom(node.Addr(is4), port), Proto: proto, Likely: v != Silence,
				})
			}
		}
	}
	results, err := f.Fire(probes, 20*time.Second, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range probes {
		r, v := results[i], want[p.To.Port()]
		if v == Reset && p.Proto == api.UDP {
			v = Refused // by the node's own stack
		}
		if r.Verdict != v {
			t.Errorf("%v to %v: %v, want %v", p.Proto, p.To, r.Verdict, v)
		}
		if at := netip.AddrPortFrom(pod.Addr(p.Src.Is4()), 8080); v == Answered && (r.By != stations["pod"] || r.At != at || r.Seen != p.Src) {
			t.Errorf("%v to %v: reached %v at %v, which saw %v; want the pod at %v, which sees %v", p.Proto, p.To, r.By, r.At, r.Seen, at, p.Src)
		}
	}
}
