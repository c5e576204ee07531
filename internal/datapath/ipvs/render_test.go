package ipvs

import (
	"fmt"
	gomaps "maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// kernel applies operations as the real kernel does, and refuses the same operations.
type kernel map[serverID]*virtualServer

func (k kernel) do(t *testing.T, ops []serverOp) {
	t.Helper()
	for _, o := range ops {
		s := k[o.server]
		if (o.cmd == cmdNewServer) != (s == nil) {
			t.Fatalf("operation %d on %v, which is %v", o.cmd, o.server, s)
		}
		switch o.cmd {
		case cmdNewServer:
			k[o.server] = &virtualServer{sched: o.definition.sched, persist: o.definition.persist, reals: map[netip.AddrPort]uint16{}}
			continue
		case cmdSetServer:
			s.sched, s.persist = o.definition.sched, o.definition.persist
			continue
		case cmdDelServer:
			delete(k, o.server)
			continue
		}
		if _, there := s.reals[o.real]; there != (o.cmd != cmdNewReal) {
			t.Fatalf("operation %d on %v of %v: it is there: %v", o.cmd, o.real, o.server, there)
		}
		if o.cmd == cmdDelReal {
			delete(s.reals, o.real)
		} else {
			s.reals[o.real] = o.weight
		}
	}
}

// step renders want and applies it, without a real kernel.
func step(t *testing.T, d *Datapath, k kernel, want *service.Table, full bool) *changes {
	t.Helper()
	r, err := d.render(want, d.changes(want, full), full)
	if err != nil {
		t.Fatal(err)
	}
	k.do(t, r.before)
	// In between, every frontend leads to a virtual server with an endpoint.
	for key, f := range r.frontends {
		for _, a := range [...]netip.AddrPort{f.server, f.externalServer} {
			if a.IsValid() && (k[serverID{a, key.Proto}] == nil || len(k[serverID{a, key.Proto}].reals) == 0) {
				t.Fatalf("%v leads to %v, where nothing is", key, a)
			}
		}
	}
	k.do(t, r.after)
	d.noteChanges(r)
	d.applied = want
	return r
}

// holds checks that the state and the kernel agree with want.
func holds(t *testing.T, d *Datapath, k kernel, want *service.Table) {
	t.Helper()
	var all []*service.Frontend
	for key, f := range d.state.frontends {
		frontend, err := d.state.frontend(key, f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, frontend)
	}
	for _, c := range service.Diff(want, service.NewTable(want.Settings, all)) {
		t.Errorf("%v: want %v, got %v", c.Key(), c.Old, c.New)
	}
	if len(k) != len(d.state.servers) {
		t.Errorf("the kernel has %d virtual servers, we know of %d", len(k), len(d.state.servers))
	}
	for i, s := range k {
		held := d.state.servers[i]
		if held == nil {
			t.Errorf("%v is in the kernel only", i)
			continue
		}
		weighted := gomaps.Clone(s.reals)
		gomaps.DeleteFunc(weighted, func(_ netip.AddrPort, w uint16) bool { return w == 0 })
		if s.sched != held.sched || s.persist != held.persist || !gomaps.Equal(weighted, held.reals) || len(s.reals)-len(weighted) != len(held.leaving) {
			t.Errorf("%v: the kernel has %+v, we know of %+v", i, s, held)
		}
	}
}

func newDatapath(t *testing.T) *Datapath {
	t.Helper()
	d, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	d.state, d.applied = newState(), &service.Table{}
	return d
}

// Random tables, one after the other: the rendered state is the wanted table, the kernel accepts the operations, and a
// second rendering changes nothing.
func TestRender(t *testing.T) {
	gen := scenario.NewRandom(rand.New(rand.NewPCG(7, 0)))
	state := scenario.NewState(gen.Facts())
	d, k := newDatapath(t), kernel{}
	for range 400 {
		state.Apply(gen.Event())
		want := state.Table()
		differ := len(service.Diff(d.applied, want))
		if r := step(t, d, k, want, false); len(r.changedFrontends) > differ {
			t.Errorf("%d frontends changed where the tables differ in %d", len(r.changedFrontends), differ)
		}
		holds(t, d, k, want)
		for _, full := range []bool{false, true} {
			r, err := d.render(want, d.changes(want, full), full)
			if err != nil || len(r.before)+len(r.after)+len(r.writes) > 0 {
				t.Fatalf("rendered again (full: %v) it wants %v, %v, %v; error %v", full, r.before, r.writes, r.after, err)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

// table is one Service with a ClusterIP and a NodePort. change may modify them.
func table(change func(f *service.Frontend), eps ...service.Endpoint) *service.Table {
	var all []*service.Frontend
	for _, at := range []string{"10.96.0.1:80", "0.0.0.0:30080"} {
		route := &service.Route{Endpoints: eps}
		f := &service.Frontend{
			Addr: netip.MustParseAddrPort(at), Proto: api.TCP, Internal: route, External: route,
			Service: api.PortName{Name: api.Name{Namespace: "default", Name: "web"}, Port: "http"},
		}
		if change != nil {
			change(f)
		}
		all = append(all, f)
	}
	return service.NewTable(service.Settings{}, all)
}

func ep(a string, weight uint16) service.Endpoint {
	return service.Endpoint{Addr: netip.MustParseAddrPort(a), Weight: weight}
}

// Frontends of a port share a virtual server, which stays while its endpoints, its scheduler and its affinity change.
func TestShare(t *testing.T) {
	d, k := newDatapath(t), kernel{}
	a, b := ep("10.244.1.5:8080", 0), ep("10.244.2.5:8080", 0)
	text := func(r *changes) string {
		var words []string
		for _, o := range slices.Concat(r.before, r.after) {
			words = append(words, fmt.Sprintf("%d:%v:%d", o.cmd, o.real, o.weight))
		}
		slices.Sort(words)
		return strings.Join(words, " ")
	}
	balance := func(b service.Algorithm) func(*service.Frontend) {
		return func(f *service.Frontend) { f.Balance = b }
	}
	for _, c := range []struct {
		what string
		want *service.Table
		ops  string
	}{
		{"new", table(nil, a, b), "1:invalid AddrPort:0 5:10.244.1.5:8080:1 5:10.244.2.5:8080:1"},
		{"one leaves", table(nil, a), "6:10.244.2.5:8080:0"},
		{"and comes back", table(nil, a, b), "6:10.244.2.5:8080:1"},
		{"least connections", table(balance(service.LeastConn), a, b), "2:invalid AddrPort:0"},
		{"with weights", table(balance(service.LeastConn), ep("10.244.1.5:8080", 3), ep("10.244.2.5:8080", 1)), "2:invalid AddrPort:0 6:10.244.1.5:8080:3"},
		{"one leaves a hash at once", table(balance(service.SourceHash), a), "2:invalid AddrPort:0 6:10.244.1.5:8080:1 7:10.244.2.5:8080:0"},
		{"affinity, with a virtual server that hashes", table(func(f *service.Frontend) { f.Affinity = time.Hour }, a), "1:invalid AddrPort:0 2:invalid AddrPort:0 5:10.244.1.5:8080:1"},
		{"no endpoints", table(func(f *service.Frontend) {
			f.Internal = &service.Route{Action: service.Reject}
			f.External = f.Internal
		}), "3:invalid AddrPort:0 3:invalid AddrPort:0"},
	} {
		if got := text(step(t, d, k, c.want, false)); got != c.ops {
			t.Errorf("%s: %s, want %s", c.what, got, c.ops)
		}
		holds(t, d, k, c.want)
	}
}

// With an algorithm that hashes the destination address, each address has its own virtual server.
func TestDestHash(t *testing.T) {
	d, k := newDatapath(t), kernel{}
	step(t, d, k, table(func(f *service.Frontend) { f.Balance = service.DestHash }, ep("10.244.1.5:8080", 0)), false)
	if len(k) != 2 {
		t.Errorf("%d virtual servers, want 2", len(k))
	}
}

// Addresses are used in turn, and no address is used twice at a time.
func TestAddresses(t *testing.T) {
	for _, is4 := range nftset.Families {
		for _, n := range []uint32{1, 255, 256, maxServers, fewServer | maxServers} {
			a := virtualServerAddr(is4, n)
			if !isVirtualServerAddr(a) || serverNumber(a) != n {
				t.Errorf("number %d has address %v, of number %d; ours: %v", n, a, serverNumber(a), isVirtualServerAddr(a))
			}
		}
	}
	d, k := newDatapath(t), kernel{}
	d.state.lastServer[0] = maxServers - 1
	b := service.NewBuilder()
	for i := range 4 {
		name := api.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
		b.Set(service.Compile(
			&service.Service{Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})}, Ports: []service.Port{{Name: "http", Proto: api.TCP, Port: 80}}},
			[]*service.Slice{{Name: name, Service: name, Ports: []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 80}},
				Endpoints: []service.SliceEndpoint{{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), Ready: true, Serving: true}}}},
			service.Facts{Node: service.Node{Name: "node-1"}}))
	}
	step(t, d, k, b.Table(service.Settings{}), false)
	if len(k) != 4 {
		t.Errorf("4 Services have %d virtual servers", len(k))
	}
}

func TestNote(t *testing.T) {
	for _, n := range []frontendComment{
		{service: api.PortName{Name: api.Name{Namespace: "a", Name: "b"}}},
		{api.PortName{Name: api.Name{Namespace: "a", Name: "b"}, Port: "http"}, service.Maglev, 10800 * time.Second, true, false, true},
		{api.PortName{Name: api.Name{Namespace: "a", Name: "b"}}, service.RoundRobin, 10800 * time.Second, false, true, false},
	} {
		if got, err := parseComment(n.String()); err != nil || got != n {
			t.Errorf("%q is read as %v, error %v", n, got, err)
		}
	}
	if _, err := parseComment("a/b fastest"); err == nil {
		t.Error("an unknown algorithm is no error")
	}
}
