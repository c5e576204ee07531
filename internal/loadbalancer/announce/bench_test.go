package announce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// crowd is 10,000 Services of one address each on 100 nodes.
func crowd(b *testing.B) Input {
	r, err := ipam.ParseRange("198.18.0.0/16")
	if err != nil {
		b.Fatal(err)
	}
	in := Input{Pools: []*ipam.Pool{{Name: "all", Ranges: []ipam.Range{r}}}, L2: []*L2Advertisement{{Name: "all"}},
		Endpoints: func(api.Name) Endpoints { return Endpoints{Any: true} }}
	for i := range 100 {
		in.Nodes = append(in.Nodes, Node{Name: fmt.Sprintf("node-%03d", i)})
	}
	a := r.First
	for i := range 10000 {
		a = a.Next()
		in.Services = append(in.Services, &Service{Name: api.Name{Namespace: "shop", Name: fmt.Sprint(i)}, Addrs: []netip.Addr{a}})
	}
	return in
}

// BenchmarkDecide: all that a speaker decides when an object changes, of 10,000 addresses on 100 nodes.
func BenchmarkDecide(b *testing.B) {
	in := crowd(b)
	b.ReportAllocs()
	for b.Loop() {
		if n := len(Decide(in)); n != 10000 {
			b.Fatalf("%d decisions", n)
		}
	}
}

// BenchmarkChange: what it decides when one Service of them changes, which moves to another address.
func BenchmarkChange(b *testing.B) {
	in := crowd(b)
	r := Decider{}
	r.Decide(in)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		svc := *in.Services[0]
		svc.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{198, 18, 255, byte(i)})}
		in.Services[0] = &svc
		if n := len(r.Decide(in)); n != 10000 {
			b.Fatalf("%d decisions", n)
		}
	}
}

// BenchmarkDeath: what it decides when a node dies: who has the addresses now.
func BenchmarkDeath(b *testing.B) {
	all, out := Decide(crowd(b)), map[string]bool{"node-003": true}
	for b.Loop() {
		for a, d := range all {
			if c, ok := d.Owner(out); !ok || c.Node == "node-003" {
				b.Fatalf("the owner of %v is %v", a, c.Node)
			}
		}
	}
}
