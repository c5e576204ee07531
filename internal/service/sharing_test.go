package service_test

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// TestSharing: an entry has the frontends of the one before it where all of them is the same,
// also what no datapath reads.
func TestSharing(t *testing.T) {
	name := api.Name{Namespace: "ns", Name: "web"}
	compile := func(cond service.SliceEndpoint, ports ...uint16) *service.Entry {
		svc := &service.Service{Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9")}}
		slice := &service.Slice{Name: name, Service: name}
		for _, p := range ports {
			text := string(rune('a' + p))
			svc.Ports = append(svc.Ports, service.Port{Name: text, Proto: api.UDP, Port: p})
			slice.Ports = append(slice.Ports, service.SlicePort{Name: text, Proto: api.UDP, Port: p})
		}
		live := service.SliceEndpoint{Addr: netip.MustParseAddr("10.244.0.1"), Ready: true, Serving: true}
		cond.Addr = netip.MustParseAddr("10.244.0.2")
		slice.Endpoints = []service.SliceEndpoint{live, cond}
		return service.Compile(svc, []*service.Slice{slice}, service.Node{})
	}
	gone, retained := service.SliceEndpoint{}, service.SliceEndpoint{Serving: true, Terminating: true}
	was := compile(gone, 1, 2, 3)
	is := compile(gone, 2, 3, 4).Sharing(was)
	for i, want := range []bool{true, true, false} {
		if same := i+1 < len(was.Frontends) && is.Frontends[i] == was.Frontends[i+1]; same != want {
			t.Errorf("frontend %v is shared: %v, want %v", is.Frontends[i].Key(), same, want)
		}
	}
	is = compile(retained, 1, 2, 3).Sharing(was)
	for i, f := range is.Frontends {
		if !f.Equal(was.Frontends[i]) || len(f.Retained) != 1 {
			t.Fatalf("%v differs in more than what it retains, or retains %v", f.Key(), f.Retained)
		}
		if f == was.Frontends[i] {
			t.Errorf("%v is shared, and would not retain %v", f.Key(), f.Retained)
		}
	}
	if alone := compile(gone, 1).Sharing(nil); len(alone.Frontends) != 1 {
		t.Error("nothing to share loses frontends")
	}
}
