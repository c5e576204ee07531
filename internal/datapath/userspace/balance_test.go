package userspace

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// some returns endpoints with weights.
func some(weights ...uint16) []service.Endpoint {
	var all []service.Endpoint
	for i, w := range weights {
		all = append(all, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 80), Weight: w})
	}
	return all
}

func newTarget(e *service.Endpoint, _ *target) *target { return &target{addr: e.Addr} }

func poolOf(a service.Algorithm, eps []service.Endpoint) *pool {
	return newPool(a, eps, nil, newTarget)
}

func client(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }

// picks counts the picks of each endpoint for n clients.
func picks(p *pool, n int) (count map[byte]int, order string) {
	count = map[byte]int{}
	var all []byte
	for i := range n {
		m := p.choose(pickKey{client(i), vip}, nil)
		last := m.addr.Addr().As4()[3]
		count[last]++
		all = append(all, '0'+last)
	}
	return count, string(all)
}

var vip = netip.MustParseAddr("10.96.0.1")

func TestRoundRobin(t *testing.T) {
	if _, got := picks(poolOf(service.RoundRobin, some(0, 0, 0)), 7); got != "0120120" {
		t.Errorf("without weights %s", got)
	}
	p := poolOf(service.RoundRobin, some(3, 1))
	if _, got := picks(p, 8); got != "00100010" {
		t.Errorf("with weights %s", got)
	}
	// The turn continues when the route changes.
	before := poolOf(service.RoundRobin, some(0, 0, 0))
	picks(before, 1)
	after := newPool(service.RoundRobin, some(0, 0, 0), before, newTarget)
	if _, got := picks(after, 3); got != "120" {
		t.Errorf("after a change %s", got)
	}
}

func TestLoad(t *testing.T) {
	for _, c := range []struct {
		algorithm service.Algorithm
		weights   []uint16
		active    []int64
		want      byte
	}{
		{service.LeastConn, []uint16{0, 0, 0}, []int64{5, 2, 7}, 1},
		{service.LeastConn, []uint16{1, 4, 1}, []int64{2, 7, 3}, 1},     // 2, 1.75, 3
		{service.ShortestDelay, []uint16{1, 3, 1}, []int64{0, 1, 1}, 1}, // 1, 0.67, 2
		{service.NeverQueue, []uint16{1, 100, 1}, []int64{0, 1, 1}, 0},  // idle, although slower
		{service.NeverQueue, []uint16{1, 3, 1}, []int64{1, 1, 1}, 1},    // no endpoint is idle, so as sed
	} {
		p := poolOf(c.algorithm, some(c.weights...))
		for i, n := range c.active {
			p.members[i].active.Store(n)
		}
		for range 5 {
			if got := p.choose(pickKey{client(1), vip}, nil).addr.Addr().As4()[3]; got != c.want {
				t.Errorf("%v %v with %v: %d, want %d", c.algorithm, c.weights, c.active, got, c.want)
			}
		}
	}
	// Among equal endpoints, the first pick varies.
	if count, _ := picks(poolOf(service.LeastConn, some(0, 0, 0)), 9); len(count) != 3 {
		t.Errorf("idle endpoints: %v", count)
	}
}

func TestHash(t *testing.T) {
	for _, a := range []service.Algorithm{service.SourceHash, service.Maglev, service.Random} {
		for _, weights := range [][]uint16{{0, 0, 0, 0}, {1, 2, 3, 4}} {
			p := poolOf(a, some(weights...))
			const n = 20000
			count, order := picks(p, n)
			if _, again := picks(p, n); a != service.Random && again != order {
				t.Errorf("%v: a client does not stay", a)
			}
			total := int64(0)
			for i := range p.members {
				total += p.members[i].weight()
			}
			for i := range p.members {
				m := &p.members[i]
				// The standard deviation is at most 71: a tenth of n is 28 of them.
				want := float64(n) * float64(m.weight()) / float64(total)
				if got := float64(count[byte(i)]); got < want-n/10 || got > want+n/10 {
					t.Errorf("%v %v: %d got %v, want about %v", a, weights, i, got, want)
				}
			}
		}
	}
	p := poolOf(service.DestHash, some(0, 0, 0, 0))
	if count, _ := picks(p, 100); len(count) != 1 {
		t.Errorf("dh gives clients of one address %v", count)
	}
	who := map[netip.AddrPort]bool{}
	for i := range 100 {
		who[p.choose(pickKey{client(1), client(i)}, nil).addr] = true
	}
	if len(who) != 4 {
		t.Errorf("dh uses %d endpoints for a hundred addresses", len(who))
	}
}

// TestMaglev: when one of ten endpoints leaves, its clients move and hardly any others.
func TestMaglev(t *testing.T) {
	all := some(make([]uint16, 10)...)
	before, after := poolOf(service.Maglev, all), poolOf(service.Maglev, slices.Delete(slices.Clone(all), 3, 4))
	moved := 0
	const n = 10000
	for i := range n {
		c := pickKey{client(i), vip}
		was, is := before.choose(c, nil).addr, after.choose(c, nil).addr
		if was != is && was != all[3].Addr {
			moved++
		}
	}
	if moved > n/20 {
		t.Errorf("%d of %d clients moved though their endpoint stayed", moved, n)
	}
}

// TestTried: with every algorithm, each endpoint is tried once, then none.
func TestTried(t *testing.T) {
	for a := service.Random; a <= service.Maglev; a++ {
		p := poolOf(a, some(2, 0, 1))
		var tried []*target
		for m := p.choose(pickKey{client(1), vip}, tried); m != nil; m = p.choose(pickKey{client(1), vip}, tried) {
			if slices.Contains(tried, m.target) || len(tried) == 3 {
				t.Fatalf("%v: %v again", a, m.addr)
			}
			tried = append(tried, m.target)
		}
		if len(tried) != 3 {
			t.Errorf("%v: %d of 3 were tried", a, len(tried))
		}
	}
	if poolOf(service.Random, nil).choose(pickKey{}, nil) != nil {
		t.Error("a pool without endpoints picks one")
	}
}

// TestRender: rendered elements are read back unchanged.
func TestRender(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	var all []*service.Frontend
	h := &kernelState{elements: map[elementID]element{}, sources: map[service.Key]*nftset.Sources{}}
	for i := range 500 {
		f := randomFrontend(rng, i)
		all = append(all, f)
		for _, e := range render(f) {
			if _, twice := h.elements[e.id()]; twice {
				t.Fatalf("%v twice", e)
			}
			h.elements[e.id()] = e
		}
		one := sourcesOf(f)
		h.sources[f.Key()] = &one
	}
	got, err := h.table()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range service.Diff(service.NewTable(service.Settings{}, all), got) {
		t.Errorf("%v: %v became %v", c.Key(), c.Old.Lines(), c.New.Lines())
	}
}

func randomFrontend(rng *rand.Rand, i int) *service.Frontend {
	is4 := rng.IntN(2) == 0
	addr := func(n int) netip.Addr {
		if is4 {
			return netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)})
		}
		return netip.MustParseAddr(fmt.Sprintf("fd00::%x", n+1))
	}
	route := func() *service.Route {
		r := &service.Route{Action: service.Action(rng.IntN(3)), Masquerade: service.Masquerade(rng.IntN(3))}
		for n := range rng.IntN(4) {
			if r.Action == service.Forward {
				r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(addr(n), uint16(rng.IntN(1<<16))), Local: n%2 == 0, Weight: uint16(rng.IntN(300))})
			}
		}
		return r
	}
	at := addr(i)
	if rng.IntN(4) == 0 {
		if at = netip.IPv6Unspecified(); is4 {
			at = netip.IPv4Unspecified()
		}
	}
	f := &service.Frontend{
		Addr: netip.AddrPortFrom(at, uint16(1000+i)), Proto: api.TCP, Internal: route(),
		Service:   api.PortName{Name: api.Name{Namespace: "ns", Name: fmt.Sprint("s", i)}, Port: "http"},
		Balance:   service.Algorithm(rng.IntN(8)),
		Affinity:  time.Duration(rng.IntN(3)) * time.Second,
		ClusterIP: !at.IsUnspecified() && rng.IntN(2) == 0,
	}
	if f.External = f.Internal; rng.IntN(2) == 0 {
		f.External = route()
	}
	if rng.IntN(4) == 0 && !f.NodePort() {
		other := netip.MustParsePrefix("2001:db8::/32")
		if is4 {
			other = netip.MustParsePrefix("192.0.2.0/24")
		}
		f.Sources = []netip.Prefix{netip.PrefixFrom(addr(0), 14).Masked(), other}
		slices.SortFunc(f.Sources, netip.Prefix.Compare)
	}
	return f
}

// TestPlan: a plan contains exactly the writes that differ between the kernel's elements and the wanted ones. The
// elements that send packets to the proxy come last.
func TestPlan(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 0))
	for range 200 {
		var was, is []*service.Frontend
		for i := range 8 {
			f := randomFrontend(rng, i)
			if rng.IntN(3) > 0 {
				was = append(was, f)
			}
			switch rng.IntN(3) {
			case 0:
				is = append(is, f)
			case 1:
				g := randomFrontend(rng, i)
				g.Addr, g.Sources = f.Addr, nil
				if g.Internal.Equal(g.External); f.Addr.Addr().Is4() == g.Addr.Addr().Is4() {
					g.Internal, g.External = f.External, f.Internal
				}
				is = append(is, g)
			}
		}
		from, to := service.NewTable(service.Settings{}, was), service.NewTable(service.Settings{}, is)
		h := &kernelState{elements: map[elementID]element{}, sources: map[service.Key]*nftset.Sources{}}
		held, want := map[elementID]element{}, map[elementID]element{}
		for _, f := range was {
			for _, e := range render(f) {
				h.elements[e.id()] = e
			}
			one := sourcesOf(f)
			h.sources[f.Key()] = &one
			withSources(held, f)
		}
		for _, f := range is {
			withSources(want, f)
		}
		for how, p := range map[string]*changeset{"incremental": incremental(service.Diff(from, to)), "full": fullChangeset(h, to)} {
			if got := written(t, held, p.writes()); !maps.Equal(got, want) {
				t.Fatalf("%s: got %v\nwant %v", how, got, want)
			}
		}
		if p := fullChangeset(h, from); len(p.writes()) > 0 {
			t.Fatalf("nothing to do, but %v", p.writes())
		}
	}
}

// withSources adds all elements of a frontend.
func withSources(to map[elementID]element, f *service.Frontend) {
	for _, e := range render(f) {
		to[e.id()] = e
	}
	for _, w := range nftset.ChangeSources(f.Key(), nftset.Sources{}, sourcesOf(f)).Before {
		e := elementOf(w, f.Addr.Addr().Is4())
		to[e.id()] = e
	}
}

// elementOf returns the element that a write adds. The end of a range is a part of its data.
func elementOf(w nft.Write, is4 bool) element {
	return element{set: nftset.Set(w.Set[:len(w.Set)-1]), is4: is4, key: string(w.Key), data: string(w.Last) + string(w.Data), comment: w.Comment}
}

// written applies writes to elements as the kernel does.
func written(t *testing.T, elements map[elementID]element, ws []nft.Write) map[elementID]element {
	t.Helper()
	now := maps.Clone(elements)
	for _, w := range ws {
		is4 := w.Set[len(w.Set)-1] == '4'
		e := elementOf(w, is4)
		_, there := now[e.id()]
		if there != w.Del {
			t.Fatalf("%v: delete %v, but there is %v", e, w.Del, there)
		}
		delete(now, e.id())
		if w.Add {
			now[e.id()] = e
		}
	}
	return now
}

// The cost of a change of one endpoint does not depend on the number of other endpoints. A step of the proxy loop may
// be one of hundreds, in a Service of 50,000 endpoints.
func TestOneOfManyEndpoints(t *testing.T) {
	eps := some(make([]uint16, 250)...)
	old := &service.Frontend{Addr: netip.AddrPortFrom(vip, 80), Proto: api.TCP, Internal: &service.Route{Endpoints: eps}}
	old.External = old.Internal
	is := *old
	is.Internal = &service.Route{Endpoints: slices.Delete(slices.Clone(eps), 100, 101)}
	is.External = is.Internal
	change := []service.Change{{Old: old, New: &is}}
	if ws := incremental(change).writes(); len(ws) != 1 || !ws[0].Del {
		t.Errorf("one endpoint less makes %d writes: %v", len(ws), ws)
	}
	if n := testing.AllocsPerRun(5, func() { incremental(change) }); n > 100 {
		t.Errorf("one endpoint less of %d makes %.0f allocations", len(eps), n)
	}
	p := proxy{limits: &limits{}, frontends: map[service.Key]*proxyFrontend{}, targets: map[targetKey]*target{}, tallies: map[api.PortName]*tally{}}
	p.setFrontend(old)
	before := maps.Clone(p.targets)
	p.setFrontend(&is)
	p.setFrontend(old)
	created := 0
	for k, now := range p.targets {
		if before[k] != now {
			created++
		}
		if now.pools != 1 {
			t.Errorf("%v is in %d pools", k.addr, now.pools)
		}
	}
	if created != 1 || len(p.targets) != len(eps) {
		t.Errorf("%d of %d targets are new, want one of %d: those that stay keep their connection counts", created, len(p.targets), len(eps))
	}
	other := *old
	other.Service.Name.Name = "other"
	p.setFrontend(&other)
	for k, now := range p.targets {
		if k.service != other.Service || slices.Contains(slices.Collect(maps.Values(before)), now) {
			t.Fatalf("another Service has the target %v of %v", k.addr, k.service)
		}
	}
}
