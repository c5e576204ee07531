package service_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// hugeSlices returns the slices of one Service with n endpoints, 100 in each.
func hugeSlices(name api.Name, n int) []*service.Slice {
	var all []*service.Slice
	for i := range n {
		if i%100 == 0 {
			all = append(all, &service.Slice{
				Name: api.Name{Namespace: name.Namespace, Name: fmt.Sprintf("%s-%d", name.Name, i/100)}, Service: name,
				Ports: []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}},
			})
		}
		s := all[len(all)-1]
		k := i * 7919 % n // the pods of a slice have no order of addresses
		s.Endpoints = append(s.Endpoints, service.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 200, byte(k >> 8), byte(k)}), Node: fmt.Sprintf("node-%d", k%100), Ready: true, Serving: true,
		})
	}
	return all
}

func someService(i int) *service.Service {
	return &service.Service{
		Name: api.Name{Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i)}, Created: 1,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})},
		Ports:      []service.Port{{Name: "http", Proto: api.TCP, Port: 80}},
	}
}

// BenchmarkHuge measures one change of a Service with 5,000 endpoints, including the search for the flows that it made
// wrong.
func BenchmarkHuge(b *testing.B) {
	svc := someService(1)
	slices := hugeSlices(svc.Name, 5000)
	v := service.Facts{Node: service.Node{Name: "node-1", Zone: "a"}}
	builder := service.NewBuilder()
	builder.Set(service.Compile(svc, slices, v))
	last := builder.Table(service.Settings{})
	changed := *slices[7]
	changed.Endpoints = changed.Endpoints[1:]
	both := [2]*service.Slice{slices[7], &changed}
	i := 1
	b.ReportAllocs()
	for b.Loop() {
		slices[7] = both[i%2]
		builder.Set(service.Compile(svc, slices, v))
		next := builder.Table(service.Settings{})
		if len(service.Diff(last, next)) != 1 {
			b.Fatal("nothing changed")
		}
		if flows := flow.Stale(last, next); len(flows) != i%2 {
			b.Fatal(flows)
		}
		last = next
		i++
	}
}

func BenchmarkHugeCompile(b *testing.B) {
	svc := someService(1)
	slices := hugeSlices(svc.Name, 5000)
	b.ReportAllocs()
	for b.Loop() {
		service.Compile(svc, slices, service.Facts{Node: service.Node{Name: "node-1", Zone: "a"}})
	}
}

// TestMemory limits the memory of a Service with two endpoints: of its objects, in the Builder and in its table.
func TestMemory(t *testing.T) {
	const n = 10000
	testnet.HeapAtMost(t, n, 1060, func() any {
		builder := service.NewBuilder()
		for i := range n {
			svc := someService(i)
			builder.Set(service.Compile(svc, hugeSlices(svc.Name, 2), service.Facts{Node: service.Node{Name: "node-1"}}))
		}
		return []any{builder, builder.Table(service.Settings{})}
	})
}
