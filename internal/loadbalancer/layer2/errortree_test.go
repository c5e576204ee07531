package layer2

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
)

// TestErrorTree: wherever a router sends an ICMP error, each node gets it once, also if nodes are silent. While nodes
// disagree about the nodes, no error goes round.
func TestErrorTree(t *testing.T) {
	var nodes []string
	index := map[netip.Addr]int{}
	for i := range 40 {
		nodes = append(nodes, fmt.Sprintf("node-%02d", i))
		index[netip.AddrFrom4([4]byte{172, 18, 1, byte(i)})] = i
	}
	addrOf := func(node string) netip.Addr {
		return netip.AddrFrom4([4]byte{172, 18, 1, byte(slices.Index(nodes, node))})
	}
	// visits returns how often each node gets an error that a router sends to a node, by the targets of each node.
	visits := func(from int, all []fence.ErrorTargets) (got []int) {
		got = make([]int, len(all))
		var pass func(i int, byRouter bool)
		pass = func(i int, byRouter bool) {
			if to := all[i].Root; byRouter && to.IsValid() {
				pass(index[to], false)
				return
			}
			if got[i]++; got[i] > 1000 {
				t.Fatalf("node %d gets the error again and again", i)
			}
			for _, to := range []netip.Addr{all[i].Left, all[i].Right} {
				if to.IsValid() {
					pass(index[to], false)
				}
			}
		}
		pass(from, true)
		return got
	}
	for n := 1; n <= len(nodes); n++ {
		var all []fence.ErrorTargets
		gone := set([]string{"node-03", "node-07"})
		f := newForwarding(nil)
		f.noteSpeaking(nodes, nil)
		f.gone = gone
		for _, self := range nodes[:n] {
			all = append(all, f.errorTargets(self, nodes[:n], addrOf))
		}
		for from := range n {
			if gone[nodes[from]] {
				continue // it hears itself
			}
			for i, times := range visits(from, all) {
				if want := map[bool]int{false: 1, true: 0}[gone[nodes[i]]]; times != want {
					t.Fatalf("an error that %s gets from a router comes %d times to %s, want %d of %d nodes", nodes[from], times, nodes[i], want, n)
				}
			}
		}
	}
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		var all []fence.ErrorTargets
		for _, self := range nodes {
			f := newForwarding(nil)
			f.noteSpeaking(nodes, nil)
			f.gone = map[string]bool{nodes[random.IntN(len(nodes))]: true, nodes[random.IntN(len(nodes))]: true}
			all = append(all, f.errorTargets(self, nodes, addrOf))
		}
		visits(int(seed)%len(nodes), all)
	}
}
