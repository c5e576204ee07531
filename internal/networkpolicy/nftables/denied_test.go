package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// What is denied is counted by its direction, and noted, in both families.
func TestDenied(t *testing.T) {
	net := testnet.New(t)
	n := &node{net.Node("here"), networkpolicy.New("here"), New()}
	t.Cleanup(n.table.Close)
	hosts := map[netip.Addr]*testnet.Host{}
	names := []string{"in", "out"}
	all := map[string][]netip.Addr{
		"in":  {netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:244:1::1")},
		"out": {netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")},
	}
	for _, name := range names {
		full := api.Name{Namespace: name, Name: name}
		n.compiler.SetPod(full, &api.Pod{Name: full, Node: "here", Addrs: all[name]})
		h := net.Pod(n.Host, name, all[name]...)
		for _, a := range all[name] {
			hosts[a] = h
		}
	}
	for _, d := range []networkpolicy.Direction{networkpolicy.Egress, networkpolicy.Ingress} {
		// "out" may not send, "in" may not receive.
		name := api.Name{Namespace: "out", Name: "deny"}
		if d == networkpolicy.Ingress {
			name.Namespace = "in"
		}
		p := &networkpolicy.Policy{Name: name}
		p.Isolates[d] = true
		n.compiler.SetPolicy(name, p)
	}
	n.sync(t)
	third := netip.MustParseAddr("10.244.1.3")
	hosts[third] = net.Pod(n.Host, "third", third)
	ask := func(from, to netip.Addr, network string) {
		t.Helper()
		if a := hosts[from].Ask(network, netip.AddrPortFrom(to, 8080), testnet.Patience); a.Outcome != testnet.Dropped {
			t.Errorf("%v to %v: %v", from, to, a)
		}
	}
	ask(all["out"][0], third, "udp")
	ask(all["out"][1], all["in"][1], "tcp")
	ask(third, all["in"][0], "udp")
	var counts Counts
	late := map[networkpolicy.Direction][]networkpolicy.Packet{}
	err := n.Do(func() (err error) {
		for _, d := range []networkpolicy.Direction{networkpolicy.Egress, networkpolicy.Ingress} {
			if late[d], err = n.table.DeniedLately(t.Context(), d); err != nil {
				return err
			}
		}
		counts, err = n.table.Denied(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if counts[networkpolicy.Egress] < 2 || counts[networkpolicy.Ingress] != 1 {
		t.Errorf("counted %v", counts)
	}
	wantOut := []networkpolicy.Packet{{Src: all["out"][0], Dst: third, Proto: api.UDP, Port: 8080}, {Src: all["out"][1], Dst: all["in"][1], Proto: api.TCP, Port: 8080}}
	if !slices.Equal(late[networkpolicy.Egress], wantOut) {
		t.Errorf("egress denied %v, want %v", late[networkpolicy.Egress], wantOut)
	}
	if wantIn := []networkpolicy.Packet{{Src: third, Dst: all["in"][0], Proto: api.UDP, Port: 8080}}; !slices.Equal(late[networkpolicy.Ingress], wantIn) {
		t.Errorf("ingress denied %v, want %v", late[networkpolicy.Ingress], wantIn)
	}
}
