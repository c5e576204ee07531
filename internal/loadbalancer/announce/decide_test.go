package announce

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

func is(key, value string) api.Selector {
	return api.NewSelector(api.Requirement{Key: key, Op: api.In, Values: []string{value}})
}

func pool(t testing.TB, name, addrs string) *ipam.Pool {
	r, err := ipam.ParseRange(addrs)
	if err != nil {
		t.Fatal(err)
	}
	return &ipam.Pool{Name: name, Labels: map[string]string{"pool": name}, Ranges: []ipam.Range{r}}
}

var vip = netip.MustParseAddr("192.0.2.2")

// world is three nodes, a pool, and a Service with an endpoint on node-2.
func world(t testing.TB) Input {
	in := Input{
		Pools:    []*ipam.Pool{pool(t, "public", "192.0.2.0/24")},
		L2:       []*L2Advertisement{{Name: "all"}},
		Services: []*Service{{Name: api.Name{Namespace: "shop", Name: "web"}, Labels: map[string]string{"app": "web"}, Addrs: []netip.Addr{vip}, HealthCheckNodePort: 31000}},
		Endpoints: func(api.Name) Endpoints {
			return Endpoints{Any: true, Ready: map[string]bool{"node-2": true}, Serving: map[string]bool{"node-1": true, "node-2": true}}
		},
	}
	for i := range 3 {
		name := fmt.Sprintf("node-%d", i+1)
		in.Nodes = append(in.Nodes, Node{Name: name, Labels: map[string]string{"name": name}})
	}
	return in
}

// TestPoolGone: an address stays announced when its pool goes or shrinks.
func TestPoolGone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Input)
		want   string
	}{
		"its pool is gone": {func(in *Input) { in.Pools, in.Services[0].Pool = nil, "public" }, "[node-3 node-1 node-2]"},
		"its pool is gone, and named": {func(in *Input) {
			in.Pools, in.Services[0].Pool = nil, "public"
			in.L2[0] = &L2Advertisement{IPAddressPools: []string{"public"}, NodeSelectors: []api.Selector{is("name", "node-1")}}
		}, "[node-1]"},
		"its pool shrank": {func(in *Input) {
			in.Pools[0], in.Services[0].Pool = pool(t, "public", "198.51.100.0/24"), "public"
			in.L2[0] = &L2Advertisement{IPAddressPoolSelectors: []api.Selector{is("pool", "public")}}
		}, "[node-3 node-1 node-2]"},
		"its pool is gone, another pool's advertisement": {func(in *Input) {
			in.Pools, in.Services[0].Pool = nil, "public"
			in.L2[0] = &L2Advertisement{IPAddressPools: []string{"x"}}
		}, NoAdvertisement},
		"another pool has it now": {func(in *Input) {
			in.Pools[0], in.Services[0].Pool = pool(t, "other", "192.0.2.0/24"), "public"
			in.L2[0] = &L2Advertisement{IPAddressPools: []string{"public"}}
		}, NoAdvertisement},
	} {
		in := world(t)
		c.change(&in)
		checkDecision(t, name, in, c.want)
	}
}

// checkDecision fails the test unless the decision about vip is want: the candidates, the best first, or the reason.
func checkDecision(t *testing.T, name string, in Input, want string) {
	t.Helper()
	d := Decide(in)[vip]
	got := d.Reason
	if got == "" {
		var all []string
		for _, c := range d.Candidates() {
			text := c.Node
			if c.Interfaces != nil {
				text += fmt.Sprintf(" on %v", c.Interfaces)
			}
			all = append(all, text)
		}
		got = fmt.Sprint(all)
	}
	if got != want {
		t.Errorf("%s: %s, want %s", name, got, want)
	}
}

// TestDecide: what each rule leaves of the three nodes, the best first, or the reason.
func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Input)
		want   string
	}{
		"all nodes, by hash": {func(*Input) {}, "[node-3 node-1 node-2]"},
		"no pool":            {func(in *Input) { in.Pools = []*ipam.Pool{pool(t, "other", "198.51.100.0/24")} }, NoPool},
		"no advertisement":   {func(in *Input) { in.L2 = nil }, NoAdvertisement},
		"another pool's":     {func(in *Input) { in.L2[0] = &L2Advertisement{IPAddressPools: []string{"x"}} }, NoAdvertisement},
		"this pool's":        {func(in *Input) { in.L2[0] = &L2Advertisement{IPAddressPools: []string{"x", "public"}} }, "[node-3 node-1 node-2]"},
		"pool by label": {func(in *Input) {
			in.L2[0] = &L2Advertisement{IPAddressPoolSelectors: []api.Selector{is("pool", "public")}}
		}, "[node-3 node-1 node-2]"},
		"another Service's": {func(in *Input) { in.L2[0] = &L2Advertisement{ServiceSelectors: []api.Selector{is("app", "x")}} }, NoAdvertisement},
		"one with problems": {func(in *Input) { in.L2[0] = &L2Advertisement{Problems: []api.Problem{{}}} }, NoAdvertisement},
		"by node":           {func(in *Input) { in.L2[0] = &L2Advertisement{NodeSelectors: []api.Selector{is("name", "node-1")}} }, "[node-1]"},
		"two advertisements": {func(in *Input) {
			in.L2 = []*L2Advertisement{{NodeSelectors: []api.Selector{is("name", "node-1")}, Interfaces: []string{"eth1"}}, {NodeSelectors: []api.Selector{is("name", "node-2")}}}
		}, "[node-1 on [eth1] node-2]"},
		"interfaces of two": {func(in *Input) {
			in.L2 = []*L2Advertisement{{Interfaces: []string{"eth1"}}, {Interfaces: []string{"eth0"}}}
		}, "[node-3 on [eth0 eth1] node-1 on [eth0 eth1] node-2 on [eth0 eth1]]"},
		"no such node": {func(in *Input) { in.L2[0] = &L2Advertisement{NodeSelectors: []api.Selector{is("name", "x")}} }, NoNode},
		"preferred": {func(in *Input) {
			in.L2[0] = &L2Advertisement{PreferredNodeSelectors: []PreferredNodeSelector{{10, is("name", "node-2")}, {5, is("name", "node-1")}}}
		}, "[node-2 node-1 node-3]"},
		"excluded": {func(in *Input) { in.Nodes[2].Excluded = "drained" }, "[node-1 node-2]"},
		"Local":    {func(in *Input) { in.Services[0].Local = true }, "[node-2]"},
		"Local, last terminating": {func(in *Input) {
			in.Services[0].Local = true
			only(in, Endpoints{Any: true, Serving: map[string]bool{"node-1": true}})
		}, "[node-1]"},
		"Local, nowhere": {func(in *Input) {
			in.Services[0].Local = true
			only(in, Endpoints{Any: true, Ready: map[string]bool{"node-9": true}})
		}, NoLocal},
		"no endpoints": {func(in *Input) { only(in, Endpoints{}) }, NoEndpoints},
	} {
		in := world(t)
		c.change(&in)
		checkDecision(t, name, in, c.want)
	}
}

func only(in *Input, e Endpoints) { in.Endpoints = func(api.Name) Endpoints { return e } }

// TestOwner: the best that is not out.
func TestOwner(t *testing.T) {
	d := Decide(world(t))[vip]
	for _, want := range []string{"node-3", "node-1", "node-2", ""} {
		out := map[string]bool{}
		for _, c := range d.Candidates() {
			if c.Node == want {
				break
			}
			out[c.Node] = true
		}
		if c, ok := d.Owner(out); c.Node != want || ok != (want != "") {
			t.Errorf("without %v: %q, want %q", out, c.Node, want)
		}
	}
}

// TestLeastMovement: a node that goes moves only the addresses that it had, and addresses are
// spread evenly.
func TestLeastMovement(t *testing.T) {
	in := world(t)
	in.Services[0].Addrs = nil
	for a := netip.MustParseAddr("192.0.2.0"); a.As4()[3] < 255; a = a.Next() {
		in.Services[0].Addrs = append(in.Services[0].Addrs, a)
	}
	before := Decide(in)
	in.Nodes = in.Nodes[:2]
	count := map[string]int{}
	for a, d := range Decide(in) {
		was, _ := before[a].Owner(nil)
		is, _ := d.Owner(nil)
		if count[was.Node]++; was.Node != "node-3" && was.Node != is.Node {
			t.Errorf("%v moves from %s to %s", a, was.Node, is.Node)
		}
	}
	for node, n := range count {
		if n < 255/3*7/10 {
			t.Errorf("%s has %d of 255 addresses", node, n)
		}
	}
}

// TestEndpointsOf: where a Service is ready, and where it only still serves.
func TestEndpointsOf(t *testing.T) {
	e := EndpointsOf([]*service.Slice{{Endpoints: []service.SliceEndpoint{
		{Node: "a", Ready: true, Serving: true}, {Node: "b", Serving: true, Terminating: true}, {Node: "c"}, {Ready: true, Serving: true},
	}}})
	if got := fmt.Sprint(e); got != "{true map[a:true] map[a:true b:true]}" {
		t.Error(got)
	}
}

// TestEgress: a decision says whether pods leave with the address, also when only that has changed.
func TestEgress(t *testing.T) {
	in := world(t)
	var r Decider
	for _, want := range []bool{false, true, true, false} {
		changed := *in.Services[0]
		changed.Egress = want
		in.Services = []*Service{&changed}
		if d := r.Decide(in)[vip]; d == nil || d.Egress != want {
			t.Errorf("egress %v: %+v", want, d)
		}
	}
}

// TestEgressByRouters: with an address that routers are told of pods do not leave, and what changes that is another decision.
func TestEgressByRouters(t *testing.T) {
	in := world(t)
	egress := *in.Services[0]
	egress.Egress = true
	var r Decider
	other := &BGPAdvertisement{IPAddressPools: []string{"another"}}
	broken := &BGPAdvertisement{Problems: []api.Problem{{}}}
	for i, step := range []struct {
		routed []*BGPAdvertisement
		egress bool
		want   bool
	}{{nil, true, false}, {[]*BGPAdvertisement{{}}, true, true}, {[]*BGPAdvertisement{{}}, false, false}, {[]*BGPAdvertisement{other, broken}, true, false}, {[]*BGPAdvertisement{other, {}}, true, true}} {
		svc := egress
		svc.Egress = step.egress
		in.Services, in.Routed = []*Service{&svc}, step.routed
		if d := r.Decide(in)[vip]; d == nil || d.Routed != step.want {
			t.Errorf("step %d: %+v", i, d)
		}
	}
}
