package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/service"
)

// fakeCluster is an egressSource.
type fakeCluster struct {
	services []*service.Service
	pods     []*api.Pod
	taken    int
}

func (c *fakeCluster) Synced() <-chan struct{}      { return nil }
func (c *fakeCluster) Dirty() <-chan struct{}       { return nil }
func (c *fakeCluster) Take() []api.Name             { c.taken++; return nil }
func (c *fakeCluster) Services() []*service.Service { return c.services }
func (c *fakeCluster) Pods() []*api.Pod             { return c.pods }
func (c *fakeCluster) pod(name, node, a string) {
	c.pods = append(c.pods, &api.Pod{Name: api.Name{Namespace: "shop", Name: name}, Node: node, Labels: map[string]string{"app": name}, Addrs: []netip.Addr{netip.MustParseAddr(a)}})
}

// TestUnrelatedPods: only what changes how a pod leaves the cluster makes the pod network look at the kernel again; pods
// that come, change and go beside it do not, nor a speaker that says the same.
func TestUnrelatedPods(t *testing.T) {
	vip := netip.MustParseAddr("192.0.2.200")
	c := &fakeCluster{services: []*service.Service{{
		Name: api.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, BalancerIPs: []netip.Addr{vip},
		Egress: &service.Egress{Selector: map[string]string{"app": "web"}},
	}}}
	c.pod("web", "node-1", "10.244.1.2")
	said := podroutes.Of(t.TempDir(), "node-1")
	e := &egressAddresses{
		log: slog.New(slog.DiscardHandler), node: "node-1", source: c, rib: said, dirty: make(chan struct{}, 1),
		event: func(api.Name, api.Problem) {},
	}
	syncs := 0
	pass := func(read bool) {
		t.Helper()
		if !e.pass(read) {
			t.Fatal("the owners are not known")
		}
		select {
		case <-e.Dirty(): // a Network calls Sync for each of these
			syncs++
		default:
		}
	}
	want := func(n int, when string) {
		t.Helper()
		if syncs != n {
			t.Errorf("%d syncs %s, want %d", syncs, when, n)
		}
		syncs = 0
	}
	if err := said.SetOwners(map[netip.Addr]string{vip: "node-2"}); err != nil {
		t.Fatal(err)
	}
	pass(true)
	want(1, "at first")
	for i := range 100 {
		c.pod("job", "node-1", fmt.Sprintf("10.244.1.%d", 100+i))
		pass(false)
		c.pods[1].Labels = map[string]string{"app": "job", "step": fmt.Sprint(i)}
		pass(i%10 == 0)
		if i%2 == 0 {
			c.pods = slices.Delete(c.pods, 1, 2)
			pass(false)
		}
	}
	if c.taken < 200 {
		t.Fatalf("%d passes", c.taken)
	}
	want(0, "while other pods came, changed and went")
	c.pod("web", "node-2", "10.244.2.2")
	pass(false)
	want(1, "for another pod that leaves so")
	if err := said.SetOwners(map[netip.Addr]string{vip: podroutes.ByRouters}); err != nil {
		t.Fatal(err)
	}
	pass(true)
	want(1, "when routers are told of the address")
	pods, known := e.Pods()
	if p := pods[netip.MustParseAddr("10.244.1.2")]; !known || p.Gateway != "" || p.Addr != vip {
		t.Errorf("by routers the pod leaves as %+v", p)
	}
	if w := e.status(); len(w) != 1 || w[0].Here != 1 || w[0].Everywhere != 2 || w[0].Problem == "" {
		t.Errorf("the status is %+v", w)
	}
}
