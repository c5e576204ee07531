package ipam

import (
	"fmt"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

func benchService(i int) *Service {
	return &Service{
		Name: api.Name{Namespace: fmt.Sprintf("ns-%d", i%100), Name: fmt.Sprintf("svc-%d", i)}, Created: int64(i),
		Wanted: true, Families: []Family{IPv4}, Ports: []Port{{api.TCP, 80}, {api.TCP, 443}},
	}
}

// bench returns an Allocator with so many Services and so many addresses.
func bench(b *testing.B, services, addresses int) *Allocator {
	first, err := ParseRange("10.0.0.0/8")
	if err != nil {
		b.Fatal(err)
	}
	last := first.First
	for range addresses - 1 {
		last = last.Next()
	}
	a := New()
	a.SetPools([]*Pool{{Name: "default", AutoAssign: true, Ranges: []Range{{first.First, last}}}})
	for i := range services {
		a.Set(benchService(i))
	}
	a.Decide()
	return a
}

// BenchmarkChange: a Service of 10,000 goes and comes back; with 1,000 that wait, the address
// goes to the oldest of these.
func BenchmarkChange(b *testing.B) {
	for _, c := range []struct {
		name                string
		services, addresses int
	}{{"10000", 10000, 20000}, {"10000-1000-wait", 10000, 9000}} {
		b.Run(c.name, func(b *testing.B) {
			a := bench(b, c.services, c.addresses)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s := benchService(i * 7919 % c.services)
				a.Remove(s.Name)
				a.Decide()
				a.Set(s)
				a.Decide()
				a.Report()
			}
		})
	}
}

// BenchmarkAdopt: a start with 10,000 Services that have their addresses.
func BenchmarkAdopt(b *testing.B) {
	a := bench(b, 10000, 20000)
	var all []*Service
	for _, r := range a.records {
		s := *r.Service
		s.Assigned, s.AssignedFrom = r.have, r.pool
		all = append(all, &s)
	}
	for b.Loop() {
		again := New()
		again.SetPools(a.all)
		for _, s := range all {
			again.Set(s)
		}
		if n := len(again.Decide()); n != len(all) {
			b.Fatalf("%d decisions", n)
		}
	}
}
