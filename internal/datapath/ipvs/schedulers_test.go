//go:build uml

package ipvs_test

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// total is the number of connections that show a scheduler's behaviour.
const total = 1000

// weigh returns the endpoints with weights.
func weigh(eps []service.Endpoint, weights ...uint16) []service.Endpoint {
	var out []service.Endpoint
	for i, w := range weights {
		e := eps[i]
		e.Weight = w
		out = append(out, e)
	}
	return out
}

// Each scheduler distributes connections as its name says. keep selects the connections that stay open. The others end
// before the next one starts.
func TestSchedulers(t *testing.T) {
	all := func(int) bool { return true }
	none := func(int) bool { return false }
	slow := func(endpoint int) bool { return endpoint == 0 }
	for _, c := range []struct {
		name    string
		balance service.Algorithm
		weights []uint16
		keep    func(endpoint int) bool
		want    []int // connections of each endpoint
		within  int
	}{
		{"rr takes turns", service.RoundRobin, []uint16{0, 0, 0}, none, []int{334, 333, 333}, 1},
		{"rr takes turns, whoever is busy", service.RoundRobin, []uint16{0, 0, 0}, slow, []int{334, 333, 333}, 1},
		{"wrr takes turns by weight", service.RoundRobin, []uint16{1, 3}, none, []int{250, 750}, 3},
		{"random is as even", service.Random, []uint16{0, 0, 0}, none, []int{334, 333, 333}, 1},
		{"lc is even while all stay open", service.LeastConn, []uint16{0, 0, 0}, all, []int{334, 333, 333}, 2},
		// For a while, IPVS counts an ended connection as a 256th of an open one.
		{"lc spares a slow endpoint", service.LeastConn, []uint16{0, 0, 0}, slow, []int{5, 497, 498}, 10},
		{"wlc heeds weights", service.LeastConn, []uint16{1, 3}, all, []int{250, 750}, 3},
		{"sed heeds weights", service.ShortestDelay, []uint16{1, 3}, all, []int{250, 750}, 3},
		{"nq heeds weights", service.NeverQueue, []uint16{1, 3}, all, []int{250, 750}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, open(t))
			r.sync(frontend(0, api.TCP, c.balance, weigh(r.eps, c.weights...)...))
			got := make([]int, len(c.weights))
			for range total {
				conn := r.dial(r.from(0), vip(0))
				i := r.index(conn.at)
				got[i]++
				if !c.keep(i) {
					r.end(conn)
				}
			}
			for i := range got {
				if d := got[i] - c.want[i]; d > c.within || d < -c.within {
					t.Errorf("the endpoints got %v connections, want %v ± %d", got, c.want, c.within)
				}
			}
			t.Logf("%d connections: %v", total, got)
		})
	}
}

// index returns the index of the endpoint with an address.
func (r *rig) index(a netip.AddrPort) int {
	for i, e := range r.eps {
		if e.Addr == a {
			return i
		}
	}
	r.t.Fatalf("answered by %v", a)
	return -1
}

// sed would queue at the fast endpoint, and nq chooses an idle endpoint.
func TestNeverQueue(t *testing.T) {
	r := newRig(t, open(t))
	eps := weigh(r.eps, 1, 5)
	r.sync(frontend(0, api.TCP, service.ShortestDelay, eps...), frontend(1, api.TCP, service.NeverQueue, eps...))
	for i, want := range []int{0, 1} { // the slow endpoint's connections, of the first two
		slow := 0
		for range 2 {
			if r.dial(r.from(0), vip(i)).at == eps[0].Addr {
				slow++
			}
		}
		if slow != want {
			t.Errorf("%v: the slow endpoint got %d of 2 connections, want %d", []service.Algorithm{service.ShortestDelay, service.NeverQueue}[i], slow, want)
		}
	}
}

// sh and maglev: a client always gets the same endpoint, and clients are distributed. With maglev, few clients of the
// remaining endpoints move when an endpoint leaves.
func TestSourceHash(t *testing.T) {
	for _, b := range []service.Algorithm{service.SourceHash, service.Maglev} {
		t.Run(b.String(), func(t *testing.T) {
			r := newRig(t, open(t))
			r.sync(frontend(0, api.TCP, b, r.eps...))
			home := make([]netip.AddrPort, len(r.addrs))
			used := map[netip.AddrPort]int{}
			for i := range total {
				n := i % len(r.addrs)
				conn := r.dial(r.from(n), vip(0))
				r.end(conn)
				switch {
				case !home[n].IsValid():
					home[n] = conn.at
					used[conn.at]++
				case home[n] != conn.at:
					t.Fatalf("%v moved from %v to %v", r.addrs[n], home[n], conn.at)
				}
			}
			t.Logf("clients of the endpoints: %v", used)
			if len(used) != len(r.eps) {
				t.Errorf("%d clients use %d of %d endpoints", len(r.addrs), len(used), len(r.eps))
			}
			if b != service.Maglev {
				return
			}
			r.sync(frontend(0, api.TCP, b, r.eps[:2]...))
			moved := 0
			for n := range r.addrs {
				if now := r.dial(r.from(n), vip(0)).at; home[n] != r.eps[2].Addr && now != home[n] {
					moved++
				}
			}
			if stayed := len(r.addrs) - used[r.eps[2].Addr]; moved*4 > stayed {
				t.Errorf("%d of %d clients moved although their endpoint stayed", moved, stayed)
			}
		})
	}
}

// dh: an address always leads to the same endpoint, for any client, and addresses are distributed.
func TestDestHash(t *testing.T) {
	r := newRig(t, open(t))
	var all []*service.Frontend
	for i := range 30 {
		all = append(all, frontend(i, api.TCP, service.DestHash, r.eps...))
	}
	r.sync(all...)
	home := map[int]netip.AddrPort{}
	used := map[netip.AddrPort]int{}
	for i := range total {
		n := i % len(all)
		conn := r.dial(r.from(i%len(r.addrs)), vip(n))
		r.end(conn)
		switch {
		case !home[n].IsValid():
			home[n] = conn.at
			used[conn.at]++
		case home[n] != conn.at:
			t.Fatalf("%v moved from %v to %v", vip(n), home[n], conn.at)
		}
	}
	t.Logf("addresses of the endpoints: %v", used)
	if len(used) != len(r.eps) {
		t.Errorf("%d addresses use %d of %d endpoints", len(all), len(used), len(r.eps))
	}
}

// The scheduler changes while connections are open, and all of them continue.
func TestLiveChange(t *testing.T) {
	r := newRig(t, open(t))
	r.sync(frontend(0, api.TCP, service.RoundRobin, r.eps...))
	var conns []*conn
	for range 6 {
		conns = append(conns, r.dial(r.from(0), vip(0)))
	}
	for _, b := range []service.Algorithm{service.LeastConn, service.SourceHash, service.Maglev, service.DestHash, service.ShortestDelay, service.NeverQueue, service.Random} {
		r.sync(frontend(0, api.TCP, b, r.eps...))
		for _, c := range conns {
			if at := r.ask(c); at != c.at {
				t.Errorf("%v: a connection to %v is answered by %v", b, c.at, at)
			}
		}
		r.do(func() error {
			held, err := r.dp.Adopt(t.Context())
			if err != nil {
				return err
			}
			for _, f := range held.Table.Sorted() {
				if f.Balance != b {
					t.Errorf("%v is adopted as %v", b, f.Balance)
				}
			}
			return nil
		})
	}
}
