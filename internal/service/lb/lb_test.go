package lb

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
)

// some returns n endpoints, with weights in turn.
func some(n int, weights ...uint16) []service.Endpoint {
	all := make([]service.Endpoint, n)
	for i := range all {
		all[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244 + byte(i>>16), byte(i >> 8), byte(i)}), 8080)
		if len(weights) > 0 {
			all[i].Weight = weights[i%len(weights)]
		}
	}
	return all
}

func counts(slots []int32, n int) []int {
	all := make([]int, n)
	for _, e := range slots {
		all[e]++
	}
	return all
}

func addrs(slots []int32, all []service.Endpoint) []netip.AddrPort {
	out := make([]netip.AddrPort, len(slots))
	for i, e := range slots {
		out[i] = all[e].Addr
	}
	return out
}

func moved(a, b []netip.AddrPort) (n int) {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

func without(all []service.Endpoint, i int) []service.Endpoint {
	return slices.Delete(slices.Clone(all), i, i+1)
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		n       int
		weights []uint16
		want    []int // shares of the first endpoints
		slots   int
	}{
		{3, nil, []int{1, 1, 1}, 3},
		{3, []uint16{0, 1, 1}, []int{1, 1, 1}, 3},
		{3, []uint16{100, 200, 300}, []int{1, 2, 3}, 6},
		{2, []uint16{7, 0}, []int{7, 1}, 8},
		{2, []uint16{60000, 40000}, []int{3, 2}, 5},
		{3, []uint16{65535, 65534, 1}, []int{512, 511, 1}, 1024},
		{5000, nil, []int{1}, 5000},
		{70000, nil, []int{1}, MaxSlots},
		{60000, []uint16{65535, 65534}, []int{1, 1}, 60000},
		{0, nil, nil, 0},
	} {
		all := some(c.n, c.weights...)
		slots := Slots(nil, all)
		got := counts(slots, c.n)
		if len(slots) != c.slots || !slices.Equal(got[:len(c.want)], c.want) {
			t.Errorf("%d endpoints of %v: %d slots, %v, want %d, %v", c.n, c.weights, len(slots), got[:len(c.want)], c.slots, c.want)
		}
		if again := Slots(addrs(slots, all), all); moved(addrs(slots, all), addrs(again, all)) > 0 {
			t.Errorf("%d endpoints of %v: the same endpoints again change the slots", c.n, c.weights)
		}
	}
}

// smooth is smooth weighted round robin as nginx describes it, the reference for Turns.
func smooth(shares []int) (round []int) {
	total := 0
	for _, s := range shares {
		total += s
	}
	credit := make([]int, len(shares))
	for range total {
		best := -1
		for i, s := range shares {
			if credit[i] += s; s > 0 && (best < 0 || credit[i] > credit[best]) {
				best = i
			}
		}
		credit[best] -= total
		round = append(round, best)
	}
	return round
}

func TestTurns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range 500 {
		shares := make([]int, rng.IntN(12))
		for i := range shares {
			shares[i] = rng.IntN(1 + rng.IntN(20))
		}
		if got, want := Turns(shares), smooth(shares); !slices.Equal(got, want) {
			t.Fatalf("turns of %v: %v, want %v", shares, got, want)
		}
	}
	for _, c := range []struct{ shares, want []int }{
		{[]int{1, 1, 1}, []int{0, 1, 2}}, {[]int{1, 3}, []int{1, 0, 1, 1}}, {[]int{3, 1}, []int{0, 0, 1, 0}}, {nil, nil},
	} {
		if got := Turns(c.shares); !slices.Equal(got, c.want) {
			t.Errorf("turns of %v: %v, want %v", c.shares, got, c.want)
		}
	}
}

// TestSlotsKeep: an endpoint that stays keeps its slots.
func TestSlotsKeep(t *testing.T) {
	all := some(6)
	was := addrs(Slots(nil, all), all)
	after := func(eps []service.Endpoint) []netip.AddrPort { return addrs(Slots(was, eps), eps) }
	if is := after(without(all, 5)); moved(was, is) > 0 {
		t.Errorf("without the last: %v", is)
	}
	if is := after(without(all, 1)); moved(was, is) != 1 || len(is) != 5 {
		t.Errorf("without the second, only its slot is filled anew: %v", is)
	}
	heavier := slices.Clone(all)
	heavier[2].Weight = 3
	if is := after(heavier); moved(was, is) > 0 || len(is) != 8 {
		t.Errorf("with a heavier one: %v", is)
	}
	rng := rand.New(rand.NewPCG(2, 0))
	for range 300 {
		all := some(1+rng.IntN(20), uint16(rng.IntN(4)), uint16(rng.IntN(4)), uint16(rng.IntN(40)))
		was := addrs(Slots(nil, all), all)
		gone := rng.IntN(len(all))
		left := without(all, gone)
		is := Slots(was, left)
		if got := counts(is, len(left)); !slices.Equal(got, Shares(left, service.MaxShares)) {
			t.Fatalf("%v without %d: slots %v, want %v", all, gone, got, Shares(left, service.MaxShares))
		}
		for i, a := range addrs(is, left) {
			if was[i] != a && was[i] != all[gone].Addr && len(was)-len(is) == Shares(all, service.MaxShares)[gone] {
				t.Fatalf("%v without %d: slot %d was %v and is %v", all, gone, i, was[i], a)
			}
		}
	}
}

// plainMaglev is the reference for Maglev: in each round, every endpoint gains its weight.
func plainMaglev(all []service.Endpoint) []int32 {
	size := service.MaglevSlots(len(all))
	heaviest := 1
	for _, e := range all {
		heaviest = max(heaviest, Weight(e))
	}
	credit, next := make([]int, len(all)), make([]int, len(all))
	for i, e := range all {
		start, _ := preference(e.Addr)
		credit[i], next[i] = heaviest-Weight(e), int(start%uint64(size))
	}
	table := slices.Repeat([]int32{free}, size)
	for filled := 0; ; {
		for i, e := range all {
			if credit[i] += Weight(e); credit[i] < heaviest {
				continue
			}
			credit[i] -= heaviest
			_, skip := preference(e.Addr)
			for table[next[i]] != free {
				next[i] = (next[i] + int(skip%uint64(size-1)) + 1) % size
			}
			table[next[i]] = int32(i)
			if filled++; filled == size {
				return table
			}
		}
	}
}

func TestMaglevReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 0))
	for _, weights := range [][]uint16{nil, {1, 3}, {10, 20, 70}, {65535, 1}, {0, 4}, {7, 11, 13, 1}} {
		for range 5 {
			all := some(1+rng.IntN(60), weights...)
			if !slices.Equal(Maglev(all), plainMaglev(all)) {
				t.Errorf("%d endpoints of %v: not as the reference", len(all), weights)
			}
		}
	}
	if Maglev(nil) != nil {
		t.Error("without endpoints there is a table")
	}
}

// TestMaglevStable: released versions have written this table into kernels. Another table would move clients during an
// upgrade.
func TestMaglevStable(t *testing.T) {
	for _, c := range []struct {
		all  []service.Endpoint
		want string
	}{
		{some(3), "2295da45d451b6ea"}, {some(40, 1, 5), "9990d75c7296c221"},
	} {
		h := sha256.New()
		for _, e := range Maglev(c.all) {
			_ = binary.Write(h, binary.BigEndian, e)
		}
		if got := fmt.Sprintf("%x", h.Sum(nil)[:8]); got != c.want {
			t.Errorf("%d endpoints: table %s, want %s", len(c.all), got, c.want)
		}
	}
}

// TestMaglev: shares are as even as the table's size promises and follow the weights. Few clients move when an endpoint
// leaves.
func TestMaglev(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 31, 32, 500, 3000, 8190} {
		all := some(n)
		is := Maglev(all)
		share := counts(is, n)
		if low, high := slices.Min(share), slices.Max(share); low < 1 || high-low > 1 {
			t.Errorf("%d endpoints in %d slots: shares from %d to %d", n, len(is), low, high)
		}
		if n < 3 || n == 32 { // a table for 31 endpoints has another size
			continue
		}
		gone := n / 2
		left := without(all, gone)
		less := Maglev(left)
		if len(less) != len(is) {
			continue
		}
		// The slots of the removed endpoint always move, and Maglev moves some more.
		if m := moved(addrs(is, all), addrs(less, left)); m < share[gone] || m > share[gone]+len(is)/8 {
			t.Errorf("%d endpoints in %d slots: one that left moved %d, its share was %d", n, len(is), m, share[gone])
		}
	}
	for _, weights := range [][]uint16{{1, 3}, {10, 20, 70}, {65535, 1}, {0, 4}} {
		all := some(len(weights), weights...)
		is := Maglev(all)
		total := 0
		for _, e := range all {
			total += Weight(e)
		}
		for i, got := range counts(is, len(all)) {
			if want := Weight(all[i]) * len(is) / total; got < max(want-2, 1) || got > want+2 {
				t.Errorf("weights %v: endpoint %d has %d of %d slots, want about %d", weights, i, got, len(is), want)
			}
		}
	}
}

// TestHash checks lookup3's own test vectors (lookup3.c, driver5).
func TestHash(t *testing.T) {
	const text = "Four score and seven years ago"
	for _, c := range []struct {
		key        string
		seed, want uint32
	}{
		{"", 0, 0xdeadbeef}, {"", 0xdeadbeef, 0xbd5b7dde}, {text, 0, 0x17770551}, {text, 1, 0xcd628161},
	} {
		if got := jhash([]byte(c.key), c.seed); got != c.want {
			t.Errorf("%q, seed %d: %#x, want %#x", c.key, c.seed, got, c.want)
		}
	}
	if a := netip.MustParseAddr("192.0.2.1"); Hash(a) != Hash(netip.MustParseAddr("::ffff:192.0.2.1")) {
		t.Error("an address in IPv6 hashes otherwise than the same in IPv4")
	}
	if Pick(0, 7) != 0 || Pick(1<<32-1, 7) != 6 || Pick(1<<31, 2) != 1 {
		t.Error("Pick leaves the list, or does not use all of it")
	}
}

// TestIDs compares IDs with a model: numbers are unique and stable, and are reused late.
func TestIDs(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 0))
	const most = 40
	ids, want := NewIDs[int](most), map[int]uint32{}
	released := map[uint32]int{} // value: the step of the release
	for step := range 5000 {
		name := rng.IntN(60)
		switch id, had := want[name]; {
		case rng.IntN(3) == 0:
			ids.Release(name)
			delete(want, name)
			if had {
				released[id] = step
			}
		default:
			got, ok := ids.Get(name)
			if ok != (had || len(want) < most) || had && got != id {
				t.Fatalf("name %d has %d: got %d, %v, of %d", name, id, got, ok, len(want))
			}
			if !ok {
				continue
			}
			for other, taken := range want {
				if other != name && taken == got {
					t.Fatalf("%d has the number %d, and so has %d", name, got, other)
				}
			}
			want[name] = got
		}
		if ids.Len() != len(want) {
			t.Fatalf("%d names have a number, want %d", ids.Len(), len(want))
		}
	}
	late := NewIDs[string](3)
	var got []uint32
	for _, name := range []string{"a", "b", "c", "d"} {
		id, ok := late.Get(name)
		if !ok {
			t.Fatalf("no number for %s", name)
		}
		got = append(got, id)
		late.Release(name)
	}
	if !slices.Equal(got, []uint32{1, 2, 3, 1}) {
		t.Errorf("released numbers come again as %v", got)
	}
}

func TestAdopt(t *testing.T) {
	ids := NewIDs[string](5)
	for _, c := range []struct {
		name string
		id   uint32
		want bool
	}{
		{"a", 4, true}, {"a", 4, true}, {"b", 4, false}, {"a", 2, false}, {"c", 0, false}, {"c", 6, false}, {"b", 1, true},
	} {
		if got := ids.Adopt(c.name, c.id); got != c.want {
			t.Errorf("adopt %d for %s: %v", c.id, c.name, got)
		}
	}
	if id, _ := ids.Get("c"); id != 5 {
		t.Errorf("after 4 comes %d", id)
	}
	if id, _ := ids.Get("d"); id != 2 {
		t.Errorf("after the last comes %d, and 1 is taken", id)
	}
	ids.Retain(func(id uint32) bool { return id == 1 })
	if id, ok := ids.Lookup("b"); ids.Len() != 1 || !ok || id != 1 {
		t.Errorf("kept: %d names, b has %d", ids.Len(), id)
	}
}

func BenchmarkMaglev(b *testing.B) {
	for _, n := range []int{3, 31, 1000} {
		all := some(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Maglev(all)
			}
		})
	}
}

func BenchmarkSlots(b *testing.B) {
	all := some(1000, 1, 2, 3)
	was := addrs(Slots(nil, all), all)
	left := without(all, 500)
	for b.Loop() {
		Slots(was, left)
	}
}
