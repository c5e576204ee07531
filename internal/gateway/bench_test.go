package gateway_test

import (
	"fmt"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// many returns a Compiler with n routes, each with its own host, or all on one host.
func many(n int, oneHost bool) (*gateway.Compiler, func(i, version int) *gateway.HTTPRoute) {
	c := gateway.NewCompiler(gateway.Settings{})
	g := &gateway.Gateway{Class: "fairway", Bind: map[gateway.BindKey]uint16{{Proto: api.TCP, Port: 80}: 20000}}
	g.Name = api.Name{Namespace: "infra", Name: "gw"}
	g.Listeners = []gateway.ListenerSpec{{Name: "http", Port: 80, Protocol: "HTTP"}}
	c.Set(&gateway.Class{Meta: gateway.Meta{Name: api.Name{Name: "fairway"}}, Controller: "fairway.net/gateway"})
	s := &gateway.Service{Ports: []gateway.ServicePort{{Proto: api.TCP, Port: 8080}}}
	s.Name = api.Name{Namespace: "infra", Name: "a"}
	c.Set(s)
	c.Set(g)
	route := func(i, version int) *gateway.HTTPRoute {
		r := &gateway.HTTPRoute{}
		r.Name = api.Name{Namespace: "infra", Name: fmt.Sprint("route", i)}
		r.Parents, r.Hostnames = []gateway.ObjectRef{parentRef("infra/gw")}, []string{fmt.Sprintf("host%d.example.com", i)}
		if oneHost {
			r.Hostnames[0] = "host.example.com"
		}
		r.Rules = []gateway.HTTPRule{{Backends: backends(fmt.Sprintf("a*%d", version+1))}}
		r.Rules[0].Matches = []gateway.HTTPMatch{{Path: gateway.StringMatch{Type: "PathPrefix", Value: fmt.Sprintf("/path%d", i)}}}
		return r
	}
	for i := range n {
		c.Set(route(i, 0))
	}
	c.Table()
	c.Changes()
	return c, route
}

// BenchmarkChange is one changed route among others: the new Table and the changed reports.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1, 3000} {
		for _, oneHost := range []bool{false, true} {
			b.Run(fmt.Sprintf("routes=%d/onehost=%v", n, oneHost), func(b *testing.B) {
				c, route := many(n, oneHost)
				for i := 0; b.Loop(); i++ {
					c.Set(route(i%n, i+1))
					c.Table()
					c.Changes()
				}
			})
		}
	}
}

// BenchmarkCold compiles all routes.
func BenchmarkCold(b *testing.B) {
	for b.Loop() {
		many(3000, false)
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1, 3000} {
		for _, oneHost := range []bool{false, true} {
			b.Run(fmt.Sprintf("routes=%d/onehost=%v", n, oneHost), func(b *testing.B) {
				c, route := many(n, oneHost)
				table, i := c.Table(), n/2
				r := &request{method: "GET", host: route(i, 0).Hostnames[0], path: fmt.Sprintf("/path%d/x", i)}
				b.ReportAllocs()
				for b.Loop() {
					if table.Lookup(20000, r).Rule == nil {
						b.Fatal("no rule")
					}
				}
			})
		}
	}
}

func BenchmarkNormalise(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		gateway.Normalise("/api/v1/namespaces/shop/carts/17")
	}
}

// TestLookupAllocates: a request costs no memory.
func TestLookupAllocates(t *testing.T) {
	c, _ := many(10, false)
	table := c.Table()
	r := &request{method: "GET", host: "host3.example.com", path: "/path3/x"}
	if n := testing.AllocsPerRun(100, func() { table.Lookup(20000, r); gateway.Normalise(r.path) }); n > 0 {
		t.Errorf("a Lookup allocates %v times", n)
	}
}
