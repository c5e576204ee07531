package userspace

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// TestManyClients: 20,000 addresses send datagrams to each of five ports. The Service remembers no more clients than
// its share. The other clients also stay at their endpoint, and another Service's clients are remembered.
func TestManyClients(t *testing.T) {
	var table affinityTable
	var route service.Route
	for i := range 3 {
		route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)}), 8080)})
	}
	in := newPool(service.Random, route.Endpoints, nil, newTarget)
	ask := func(name, port string, client netip.Addr) netip.AddrPort {
		f := &service.Frontend{Service: api.PortName{Name: api.Name{Namespace: "default", Name: name}, Port: port}, Affinity: time.Hour}
		return table.claim(f, &route, client, in, nil, func() *member { return in.choose(pickKey{client: client}, nil) }).addr
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
		if n := len(table.ports[affinityPort(api.PortName{Name: api.Name{Namespace: "default", Name: "tenant"}, Port: name}, false)]); n != want {
			t.Errorf("%s remembers %d clients, want %d", name, n, want)
		}
	}
	ask("victim", "", netip.MustParseAddr("10.244.1.1"))
	if n := len(table.ports[affinityPort(api.PortName{Name: api.Name{Namespace: "default", Name: "victim"}}, false)]); n != 1 {
		t.Errorf("another Service remembers %d clients, want its one", n)
	}
}

// The clients of a deleted Service are forgotten with it, even if the Service was deleted while no agent ran. Otherwise
// they could stay for a day, and a user could create thousands of Services in that time.
func TestServiceGone(t *testing.T) {
	p := proxy{limits: &limits{}, frontends: map[service.Key]*proxyFrontend{}, targets: map[targetKey]*target{}, tallies: map[api.PortName]*tally{}}
	route := &service.Route{Endpoints: some(0, 0), Local: true}
	of := func(name string, port uint16) *service.Frontend {
		f := &service.Frontend{Addr: netip.AddrPortFrom(vip, port), Proto: api.TCP, Internal: route, External: route, Affinity: time.Hour}
		f.Service.Name.Name = name
		return f
	}
	stays, goes := of("stays", 80), of("goes", 81)
	other := of("goes", 82) // another address of the same Service port
	for _, f := range []*service.Frontend{stays, goes, other} {
		p.setFrontend(f)
		in := p.frontends[f.Key()].internal
		p.chooseMember(p.frontends[f.Key()], route, in, pickKey{client: client(1)}, nil)
	}
	count := func(want int, when string) {
		t.Helper()
		if n := len(p.affinity.ports); n != want {
			t.Errorf("%s: clients of %d Services are remembered, want %d", when, n, want)
		}
	}
	count(2, "two Services")
	p.removeGone([]service.Change{{Old: goes}}, false)
	count(2, "one of two addresses gone")
	p.removeGone([]service.Change{{Old: other}}, false)
	count(1, "both gone")
	p.affinity.load(map[affinityKey]affinityEntry{
		{affinityPort(goes.Service, true), client(1)}:  {at: route.Endpoints[0].Addr, until: time.Now().Add(time.Hour)},
		{affinityPort(stays.Service, true), client(2)}: {at: route.Endpoints[0].Addr, until: time.Now().Add(time.Hour)},
	})
	p.removeGone(nil, true)
	count(1, "the next process")
	if ws, _ := p.affinity.writes(time.Now()); len(ws) != 2 || !ws[0].Del && !ws[1].Del { // one is added, one deleted
		t.Errorf("the kernel is told %v", ws)
	}
}
