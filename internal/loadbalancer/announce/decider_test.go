package announce

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestDecider: whatever changes, a Decider that has decided before says what a new one says, and what has not changed
// is the same Decision.
func TestDecider(t *testing.T) {
	rnd := testnet.Random(t)
	in := world(t)
	base := in.Services[0]
	in.Services = nil
	in.Nodes = nil
	endpoints := map[api.Name]Endpoints{}
	in.Endpoints = func(n api.Name) Endpoints { return endpoints[n] }
	for i := range 20 {
		name := fmt.Sprintf("node-%02d", i)
		in.Nodes = append(in.Nodes, Node{Name: name, Labels: map[string]string{"name": name}})
	}
	for i := range 30 {
		svc := *base
		svc.Name.Name = fmt.Sprint("web-", i)
		svc.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		in.Services = append(in.Services, &svc)
		endpoints[svc.Name] = Endpoints{Any: true, Ready: map[string]bool{"node-03": true}}
	}
	var r Decider
	r.Decide(in)
	for step := range 300 {
		in.Services, in.Nodes, in.L2 = slices.Clone(in.Services), slices.Clone(in.Nodes), slices.Clone(in.L2)
		i := rnd.IntN(len(in.Services))
		svc := *in.Services[i]
		in.Services[i] = &svc
		n := &in.Nodes[rnd.IntN(len(in.Nodes))]
		switch rnd.IntN(7) {
		case 0:
			svc.Local = !svc.Local
		case 1:
			svc.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(rnd.IntN(40))})} // which another may have
		case 2:
			svc.HealthCheckNodePort = uint16(30000 + rnd.IntN(3))
		case 3:
			n.Excluded = []string{"", "drained"}[rnd.IntN(2)]
		case 4:
			in.L2[0] = &L2Advertisement{NodeSelectors: []api.Selector{is("name", n.Name), is("name", "node-03"), is("name", "node-04")}[rnd.IntN(2):]}
		case 5:
			in.L2[0] = &L2Advertisement{PreferredNodeSelectors: []PreferredNodeSelector{{10, is("name", n.Name)}}, Interfaces: []string{"eth0", "eth1"}[:rnd.IntN(3)]}
		case 6:
			endpoints = maps.Clone(endpoints)
			endpoints[svc.Name] = Endpoints{Any: rnd.IntN(4) > 0, Ready: map[string]bool{n.Name: true, "node-03": rnd.IntN(2) == 0}}
		}
		got, want := r.Decide(in), Decide(in)
		for a, w := range want {
			g := got[a]
			if g == nil || g.Reason != w.Reason || !slices.Equal(g.Services, w.Services) || !slices.Equal(g.Checks, w.Checks) || !reflect.DeepEqual(g.Candidates(), w.Candidates()) {
				t.Fatalf("step %d: %v: %+v, want %+v", step, a, g, w)
			}
		}
		again := r.Decide(in)
		for a := range want {
			if len(got) != len(want) || again[a] != got[a] {
				t.Fatalf("step %d: %v is decided anew while nothing has changed, or is too much", step, a)
			}
		}
	}
}
