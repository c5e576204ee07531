package service_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

func FuzzParsePortName(f *testing.F) {
	for _, s := range []string{"ns/web:http", "ns/web", "web", "/:", "/::", "a/b:c:d", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := api.ParsePortName(s)
		if (err == nil) != strings.Contains(s, "/") {
			t.Errorf("%q: error %v", s, err)
		}
		want := s
		if n.Port == "" {
			want = strings.TrimSuffix(s, ":")
		}
		if err == nil && n.String() != want {
			t.Errorf("%q became %q", s, n)
		}
	})
}

func FuzzParseProto(f *testing.F) {
	for _, s := range []string{"", "TCP", "udp", "Sctp", "ICMP"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := api.ParseProto(s)
		if err != nil {
			return
		}
		if again, err := api.ParseProto(p.String()); err != nil || again != p {
			t.Errorf("%q is %v, which is read as %v: %v", s, p, again, err)
		}
	})
}

// The zero Table has no frontends and works like any other table.
func TestZeroTable(t *testing.T) {
	var zero service.Table
	if d := service.Diff(&zero, &service.Table{}); len(d) > 0 {
		t.Errorf("two empty tables differ: %v", d)
	}
	if s, f := zero.Len(); s+f > 0 || zero.Entry(api.Name{Namespace: "a", Name: "b"}) != nil {
		t.Errorf("an empty table has %d services, %d frontends", s, f)
	}
}

// NewTable loses no data. Datapaths and Dump make tables with it.
func TestNewTable(t *testing.T) {
	refuse := &service.Route{Action: service.Reject}
	front := func(ns, name, addr string) *service.Frontend {
		return &service.Frontend{
			Addr: netip.MustParseAddrPort(addr), Proto: api.TCP, Internal: refuse, External: refuse,
			Service: api.PortName{Name: api.Name{Namespace: ns, Name: name}},
		}
	}
	all := []*service.Frontend{front("b", "x", "10.96.0.2:80"), front("a", "y", "10.96.0.1:80"), front("a", "y", "10.96.0.1:79")}
	table := service.NewTable(service.Settings{}, all)
	if s, f := table.Len(); s != 2 || f != 3 {
		t.Errorf("%d services, %d frontends", s, f)
	}
	sorted := table.Sorted()
	if sorted[0] != all[2] || sorted[1] != all[1] || sorted[2] != all[0] {
		t.Errorf("sorted: %v", sorted)
	}
	e := table.Entry(api.Name{Namespace: "a", Name: "y"})
	if e == nil || len(e.Frontends) != 2 || e.Frontends[0] != all[2] {
		t.Errorf("entry: %v", e)
	}
}

// A change of only a Service's name, or of an endpoint's node, counts as a change.
func TestEqual(t *testing.T) {
	ep := service.Endpoint{Addr: netip.MustParseAddrPort("10.244.1.5:80")}
	frontend := func(name string, e service.Endpoint) *service.Frontend {
		r := &service.Route{Endpoints: []service.Endpoint{e}}
		return &service.Frontend{
			Addr: netip.MustParseAddrPort("10.96.0.1:80"), Proto: api.TCP,
			Service: api.PortName{Port: name}, Internal: r, External: r,
		}
	}
	local := ep
	local.Local = true
	a := frontend("a", ep)
	if !a.Equal(frontend("a", ep)) {
		t.Error("equal frontends differ")
	}
	if a.Equal(frontend("b", ep)) || a.Equal(frontend("a", local)) || a.Equal(nil) {
		t.Error("different frontends are equal")
	}
	masquerade, action := frontend("a", ep), frontend("a", ep)
	masquerade.External = &service.Route{Endpoints: a.Internal.Endpoints, Masquerade: service.MasqueradeOffCluster}
	action.Internal = &service.Route{Action: service.Drop}
	if a.Equal(masquerade) || a.Equal(action) {
		t.Error("frontends with different routes are equal")
	}
	p := func(texts ...string) (out []netip.Prefix) {
		for _, s := range texts {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	s := service.Settings{Pods: p("10.0.0.0/8", "10.244.0.0/16")}
	if !s.Equal(service.Settings{Pods: p("10.244.0.0/16", "10.0.0.0/8", "10.0.0.0/8")}) {
		t.Error("the order of prefixes makes a difference")
	}
	if s.Equal(service.Settings{Pods: s.Pods, NodePorts: s.Pods}) {
		t.Error("NodePorts make no difference")
	}
}
