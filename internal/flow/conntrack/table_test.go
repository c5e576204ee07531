package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// kernels imitates older kernels through the number of the filter attribute, because a kernel ignores unknown
// attributes.
var kernels = []struct {
	name string
	attr uint16
}{
	{"filters", ctaFilter},
	{"ignores filters", 60}, // before 5.8
}

// served reports whether NodePorts are served on an address.
func served(a netip.Addr) bool { return a.AsSlice()[len(a.AsSlice())-1] != 2 }

// described implements the documentation of Flow literally and slowly.
func described(w want, f flow.Flow, local []netip.Addr) bool {
	if w.zone != 0 || w.zoneOrig != 0 || w.proto != f.Proto || w.to.Addr().Is4() != f.Frontend.Addr().Is4() {
		return false
	}
	translated := w.by != w.to
	if f.Frontend.Addr().IsUnspecified() {
		if w.to.Port() != f.Frontend.Port() {
			return false
		}
		if f.Endpoint.IsValid() {
			return translated && w.by == f.Endpoint && !(f.OnlyUnserved && served(w.to.Addr()))
		}
		return !translated && !f.OnlyUnserved && served(w.to.Addr()) && slices.Contains(local, w.to.Addr())
	}
	if f.Endpoint.IsValid() {
		return w.to == f.Frontend && w.by == f.Endpoint
	}
	return w.to == f.Frontend && !translated
}

// domain is small, so that flows match entries.
type domain struct {
	rng     *rand.Rand
	local   []netip.Addr
	clients uint16
}

func (d *domain) pick(is4 bool, hosts int) netip.AddrPort {
	host := d.rng.IntN(hosts)
	a := netip.AddrFrom4([4]byte{10, 0, 0, byte(host + 1)})
	if !is4 {
		a = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(host + 1)})
	}
	return netip.AddrPortFrom(a, uint16(30000+d.rng.IntN(3)))
}

func (d *domain) proto() api.Proto {
	return []api.Proto{api.UDP, api.UDP, api.UDP, api.TCP, api.SCTP}[d.rng.IntN(5)]
}

func (d *domain) entry() want {
	is4 := d.rng.IntN(2) == 0
	d.clients++ // two entries cannot have the same tuple
	client := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.10"), 1024+d.clients)
	if !is4 {
		client = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::10"), 1024+d.clients)
	}
	w := want{proto: d.proto(), client: client, to: d.pick(is4, 6), by: d.pick(is4, 6)}
	if d.rng.IntN(3) == 0 {
		w.by = w.to
	}
	switch d.rng.IntN(12) {
	case 0:
		w.zone = 7
	case 1:
		w.zoneOrig = 7
	case 2:
		if is4 {
			w.masqueradedAs = netip.AddrPortFrom(netip.MustParseAddr("172.18.0.11"), client.Port())
		}
	}
	return w
}

func (d *domain) flow() flow.Flow {
	is4 := d.rng.IntN(2) == 0
	f := flow.Flow{Proto: d.proto(), Frontend: d.pick(is4, 6), Endpoint: d.pick(is4, 6)}
	if d.rng.IntN(3) == 0 {
		f.Frontend = netip.AddrPortFrom(unspecified(is4), f.Frontend.Port())
	}
	f.OnlyUnserved = f.Frontend.Addr().IsUnspecified() && d.rng.IntN(3) == 0
	if d.rng.IntN(3) == 0 {
		f.Endpoint = netip.AddrPort{}
	}
	return f
}

// TestExact creates random entries and deletes random flows. It compares the remaining entries with described, for
// every age of kernel.
func TestExact(t *testing.T) {
	seed := testnet.Seed(t)
	local := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")}
	for i, k := range kernels {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			net := testnet.New(t)
			node := net.Node("node")
			for _, a := range local {
				node.AddAddr(a)
			}
			w := newWorld(t, node.Namespace, Config{NodePort: served})
			w.filterAttr = k.attr
			d := &domain{rng: rand.New(rand.NewPCG(seed, uint64(i))), local: local}
			for round := range 8 {
				checkExact(t, w, d, round)
			}
		})
	}
}

func checkExact(t *testing.T, w *world, d *domain, round int) {
	t.Helper()
	var all []want
	for range 150 {
		all = append(all, d.entry())
	}
	w.create(all...)
	w.limit = func(int) int { return 1 + d.rng.IntN(12) } // both filters and whole dumps
	flows := make([]flow.Flow, 1+d.rng.IntN(60))
	for i := range flows {
		flows[i] = d.flow()
	}
	left := map[string]bool{}
	gone := 0
	for _, e := range all {
		if slices.ContainsFunc(flows, func(f flow.Flow) bool { return described(e, f, d.local) }) {
			gone++
		} else {
			left[e.String()] = true
		}
	}
	for _, m := range w.matches(flows) {
		e := want{m.orig.proto, m.orig.src, m.orig.dst, m.reply.src, m.zone, m.orig.zone, netip.AddrPort{}, 0}
		if !described(e, m.Flow, d.local) {
			t.Errorf("round %d: %v is said to be described by %v", round, e, m.Flow)
		}
	}
	if n := w.delete(flows...); n != gone {
		t.Errorf("round %d: %d deleted, want %d", round, n, gone)
	}
	for _, e := range w.list() {
		if e.orig.src.Port() < 1024 || e.orig.src.Addr().IsLinkLocalUnicast() {
			continue
		}
		text := want{e.orig.proto, e.orig.src, e.orig.dst, e.reply.src, e.zone, e.orig.zone, netip.AddrPort{}, 0}.String()
		if !left[text] {
			t.Errorf("round %d: still there: %s", round, text)
		}
		delete(left, text)
		w.do(func() error { // make room for the next round
			_, err := w.socket.delete(t.Context(), []entry{e})
			return err
		})
	}
	for text := range left {
		t.Errorf("round %d: deleted, too: %s", round, text)
	}
	if rest := w.list(); len(rest) > 0 {
		t.Fatalf("round %d: entries that cannot be deleted: %+v", round, rest)
	}
	if t.Failed() {
		for _, f := range flows {
			t.Log(f)
		}
		t.FailNow()
	}
}

// TestStale: between the dump and the deletion, the client starts a new flow. The new flow stays.
func TestStale(t *testing.T) {
	w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
	a := want{proto: api.UDP, client: ap("10.9.9.9:4000"), to: ap("10.96.0.10:53"), by: ap("10.244.1.5:53")}
	otherEndpoint, otherFrontend := a, a
	otherEndpoint.by = ap("10.244.1.6:53")
	otherFrontend.to = ap("10.96.0.11:53")
	for name, next := range map[string]want{"another endpoint": otherEndpoint, "another frontend": otherFrontend} {
		w.create(a)
		found := w.list()
		if len(found) != 1 {
			t.Fatalf("%d entries, want 1", len(found))
		}
		if n := w.delete(flow.Flow{Proto: a.proto, Frontend: a.to, Endpoint: a.by}); n != 1 {
			t.Fatalf("%d deleted, want 1", n)
		}
		w.create(next)
		if n, err := w.socket.delete(t.Context(), found); n != 0 || err != nil {
			t.Errorf("%s: %d deleted, %v; want the new flow to stay", name, n, err)
		}
		if n := w.delete(flow.Flow{Proto: next.proto, Frontend: next.to, Endpoint: next.by}); n != 1 {
			t.Errorf("%s: the new flow is gone", name)
		}
	}
}

func TestCount(t *testing.T) {
	w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
	w.create(crowd(200)...)
	if n, err := w.socket.count(t.Context()); n != 200 || err != nil {
		t.Errorf("%d entries, %v; want 200", n, err)
	}
}

func TestZone(t *testing.T) {
	ns := testnet.NewNamespace(t, "node")
	e := want{proto: api.UDP, client: ap("10.9.9.9:4000"), to: ap("10.96.0.10:53"), by: ap("10.244.1.5:53")}
	w := newWorld(t, ns, Config{Zone: 7})
	w.create(e)
	e.zone = 7
	w.create(e)
	f := flow.Flow{Proto: e.proto, Frontend: e.to, Endpoint: e.by}
	if n := w.delete(f); n != 1 {
		t.Errorf("%d deleted, want 1", n)
	}
	if rest := w.list(); len(rest) != 1 || rest[0].zone != 0 {
		t.Errorf("left: %+v, want the one in zone 0", rest)
	}
}

// TestOthers: the Table finds the right flows among 100,000 others.
func TestOthers(t *testing.T) {
	w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
	const others = 100_000
	w.create(crowd(others)...)
	for _, family := range [][3]string{
		{"10.9.9.9:4000", "10.96.0.10:53", "10.244.1.5:53"},
		{"[fd00:9::9]:4000", "[fd00:96::10]:53", "[fd00:244::5]:53"},
	} {
		e := want{proto: api.UDP, client: ap(family[0]), to: ap(family[1]), by: ap(family[2])}
		w.create(e)
		f := flow.Flow{Proto: e.proto, Frontend: e.to, Endpoint: e.by}
		if n := w.delete(f); n != 1 {
			t.Errorf("%v: %d deleted, want 1", f, n)
		}
		if n := w.delete(f); n != 0 {
			t.Errorf("%v: %d deleted, want none any more", f, n)
		}
	}
	var many []flow.Flow
	for i := range 1000 {
		many = append(many, flow.Flow{Proto: api.UDP, Frontend: crowdFrontend(i), Endpoint: crowdEndpoint(i)})
	}
	if n := w.delete(many...); n != others/10 {
		t.Errorf("%d deleted, want %d", n, others/10)
	}
	if n := len(w.list()); n != others-others/10 {
		t.Errorf("%d left, want %d", n, others-others/10)
	}
}

// crowd returns n entries of 10,000 frontends, each with one endpoint.
func crowd(n int) []want {
	all := make([]want, n)
	for i := range all {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 16), byte(i >> 8)}), uint16(20000+i&255))
		all[i] = want{proto: api.UDP, client: client, to: crowdFrontend(i % 10_000), by: crowdEndpoint(i % 10_000)}
	}
	return all
}

func crowdFrontend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), 53)
}

func crowdEndpoint(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), 53)
}

func TestErrors(t *testing.T) {
	w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
	ended, end := context.WithCancel(t.Context())
	end()
	f := flow.Flow{Proto: api.UDP, Frontend: ap("10.96.0.10:53"), Endpoint: ap("10.244.1.5:53")}
	w.do(func() error {
		if _, err := w.Delete(ended, []flow.Flow{f}); !errors.Is(err, context.Canceled) {
			t.Errorf("after the context's end: %v", err)
		}
		return nil
	})
	e := want{proto: f.Proto, client: ap("10.9.9.9:4000"), to: f.Frontend, by: f.Endpoint}
	w.create(e)
	w.do(func() error {
		if _, err := w.Delete(t.Context(), []flow.Flow{f, {Proto: api.UDP}}); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("a flow without a frontend: %v, want one line", err)
		}
		return nil
	})
	if n := w.delete(); n != 0 {
		t.Errorf("nothing described: %d deleted", n)
	}
	if n := w.delete(f, f); n != 1 {
		t.Errorf("%d deleted, want 1", n)
	}
}

func TestPlan(t *testing.T) {
	vip := func(i int) netip.AddrPort { return ap(fmt.Sprintf("10.96.0.%d:53", i+1)) }
	pod := func(i int) netip.AddrPort { return ap(fmt.Sprintf("10.244.0.%d:53", i+1)) }
	var down, gone, both, six []flow.Flow
	for i := range 100 {
		down = append(down, flow.Flow{Proto: api.UDP, Frontend: vip(0), Endpoint: pod(i)})
		gone = append(gone, flow.Flow{Proto: api.UDP, Frontend: vip(i), Endpoint: pod(0)})
		both = append(both, flow.Flow{Proto: api.UDP, Frontend: vip(i), Endpoint: pod(i)})
		six = append(six, flow.Flow{Proto: api.UDP, Frontend: ap(fmt.Sprintf("[fd00::%d]:53", i+1)), Endpoint: ap(fmt.Sprintf("[fd01::%d]:5353", i+1))})
	}
	all := slices.Concat(both, []flow.Flow{{Proto: api.TCP, Frontend: vip(0), Endpoint: pod(0)}})
	for name, c := range map[string]struct {
		flows []flow.Flow
		dumps int
	}{
		"none":                             {nil, 0},
		"one":                              {down[:1], 1},
		"a Service lost all endpoints":     {down, 1},
		"a pod of many frontends left":     {gone, 1},
		"a few":                            {both[:maxDumps(100_000)], maxDumps(100_000)},
		"many":                             {both, 1},
		"many and one of another protocol": {all, 2},
		"IPv6, of which the kernel can ask ports": {six, 1},
	} {
		if got := plan(c.flows, maxDumps(0)); len(got) > 2 {
			t.Errorf("%s: %d dumps of a small table: %v", name, len(got), got)
		}
		if got := plan(c.flows, maxDumps(100_000)); len(got) != c.dumps {
			t.Errorf("%s: %d dumps, want %d: %v", name, len(got), c.dumps, got)
		}
	}
}

// FuzzParse: parse does not panic on any input.
func FuzzParse(f *testing.F) {
	e := want{proto: api.UDP, client: ap("10.9.9.9:4000"), to: ap("10.96.0.10:53"), by: ap("10.244.1.5:53")}
	f.Add([]byte(e.creation()[nlmsgHeader:]))
	e = want{proto: api.TCP, client: ap("[fd00:9::9]:4000"), to: ap("[fd00:96::10]:53"), by: ap("[fd00:244::5]:53"), zone: 7, zoneOrig: 7}
	f.Add([]byte(e.creation()[nlmsgHeader:]))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parse(b)
		if !ok {
			return
		}
		if !e.orig.complete() || !e.reply.complete() || len(e.raw) == 0 {
			t.Errorf("%+v is called whole", e)
		}
		if again, ok := parse(e.reencoded()); !ok || again.reply != e.reply || again.id != e.id || again.zone != e.zone {
			t.Errorf("what would be deleted is %+v, not %+v", again, e)
		}
	})
}

// reencoded returns the answer with the attributes that a deletion sends.
func (e entry) reencoded() []byte {
	m := newMessage(ctNew, 0, e.is4())
	m = m.nest(ctaTupleOrig, func(m message) message { return m.both(e.orig.proto, e.orig.src, e.orig.dst, e.orig.zone) })
	return append(m, e.deletion()[nlmsgHeader+nfgenHeader:]...)[nlmsgHeader:]
}

// FuzzMessages: any datagram is read to its end or refused, and the message bodies are parts of it.
func FuzzMessages(f *testing.F) {
	e := want{proto: api.UDP, client: ap("10.9.9.9:4000"), to: ap("10.96.0.10:53"), by: ap("10.244.1.5:53")}
	one := []byte(e.creation().finish(1))
	done := []byte(newMessage(unix.NLMSG_DONE, 0, true).finish(1))
	f.Add(slices.Concat(one, one, done))
	f.Add(one[:len(one)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		size := 0
		err := messages(b, func(typ uint16, _ uint32, body []byte) error {
			size += nlmsgHeader + len(body)
			if typ == unix.NLMSG_DONE || typ == unix.NLMSG_ERROR {
				_ = status(body)
			}
			parse(body)
			return nil
		})
		if size > len(b) {
			t.Errorf("%d bytes of %d were read, error %v", size, len(b), err)
		}
	})
}

// TestSilence: a request without an answer ends with the context.
func TestSilence(t *testing.T) {
	w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
	unanswered := newMessage(unix.NLMSG_NOOP, 0, true)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := w.socket.dump(ctx, unanswered, func([]byte) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want the context's", err)
	}
	if _, err := w.socket.count(t.Context()); err != nil {
		t.Errorf("the next question: %v", err)
	}
}

// TestEach: Each reads every entry of the zone once, says how many the table has, and ends when it is told to.
func TestEach(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.NewNamespace(t, "node"), Config{})
	w.create(
		want{proto: api.UDP, client: ap("10.9.9.9:4000"), to: ap("10.96.0.10:53"), by: ap("10.244.1.5:53")},
		want{proto: api.UDP, client: ap("10.9.9.9:4001"), to: ap("10.96.0.10:53"), by: ap("10.244.1.5:53"), zone: 7},
		want{proto: api.UDP, client: ap("[fd00::9]:4000"), to: ap("[fd00:96::10]:53"), by: ap("[fd00:1::5]:53")},
	)
	for _, limit := range []int{3, 1} {
		var seen []netip.AddrPort
		w.do(func() error {
			n, err := w.Each(t.Context(), func(e Entry) error {
				seen = append(seen, e.Frontend())
				if _, counted := e.Bytes(); counted {
					t.Errorf("%v has bytes, and accounting is off", e.Frontend())
				}
				if len(seen) == limit {
					return ErrEnough
				}
				return nil
			})
			if n != 3 {
				t.Errorf("%d entries in the table, want 3", n)
			}
			return err
		})
		if len(seen) != min(limit, 2) {
			t.Errorf("limit %d: seen %v", limit, seen)
		}
	}
}
