package userspace

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// TestManyClients: datagrams from 20,000 addresses to each of five ports make a Service remember
// no more clients than its share. Those that are not remembered stay at their endpoint too, and
// another Service's clients are remembered.
func TestManyClients(t *testing.T) {
	var table affinityTable
	var route service.Route
	for i := range 3 {
		route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)}), 8080)})
	}
	in := newPool(service.Random, route.Endpoints, nil, newTarget)
	ask := func(name, port string, client netip.Addr) netip.AddrPort {
		f := &service.Frontend{Service: service.PortName{Name: service.Name{Namespace: "default", Name: name}, Port: port}, Affinity: time.Hour}
		return table.claim(f, &route, client, in, nil, func() *member { return in.pick(pickKey{client: client}, nil) }).addr
	}
	for port := range fullPorts + 1 {
		name := fmt.Sprint("port-", port)
		var homes []netip.AddrPort
		for _, again := range []bool{false, true} {
			for i := range 20000 {
				home := ask("tenant", name, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
				if !again {
					homes = append(homes, home)
				} else if home != homes[i] {
					t.Fatalf("%s: client %d moved from %v to %v", name, i, homes[i], home)
				}
			}
		}
		want := manyClients
		if port >= fullPorts {
			want = fewClients
		}
		if n := len(table.ports[affinityPort(service.PortName{Name: service.Name{Namespace: "default", Name: "tenant"}, Port: name}, false)]); n != want {
			t.Errorf("%s remembers %d clients, want %d", name, n, want)
		}
	}
	ask("victim", "", netip.MustParseAddr("10.244.1.1"))
	if n := len(table.ports[affinityPort(service.PortName{Name: service.Name{Namespace: "default", Name: "victim"}}, false)]); n != 1 {
		t.Errorf("another Service remembers %d clients, want its one", n)
	}
}
