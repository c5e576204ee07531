package service_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// TestPodNames: every name survives the encoding. A name that no pod can have is dropped.
func TestPodNames(t *testing.T) {
	long := strings.Repeat("x", 253)
	for _, names := range [][]string{
		nil, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "a"}, {"web-0", "web-1", "web-10"}, {"web", "web-1"}, {"web-1", "web"},
		{"a", "b"}, {"", "web-7d4b9c6f5d-x2x7k", "", "web-7d4b9c6f5d-abcde"}, {long, long},
	} {
		packed := service.PackPodNames(names)
		for i, name := range names {
			if got := packed.At(i); got != name {
				t.Errorf("%q: number %d is %q", names, i, got)
			}
		}
		if all := packed.All(len(names)); !slices.Equal(all, append([]string{}, names...)) {
			t.Errorf("%q: all are %q", names, all)
		}
		if got := packed.At(len(names)); got != "" {
			t.Errorf("%q: one more is %q", names, got)
		}
	}
	bad := service.PackPodNames([]string{"web-1", "we\nb-2", long + "x", "web-3"})
	if got := []string{bad.At(0), bad.At(1), bad.At(2), bad.At(3)}; !slices.Equal(got, []string{"web-1", "", "", "web-3"}) {
		t.Errorf("names that no pod can have: %q", got)
	}
}

// FuzzPodNames: whatever names a slice has, the decoded names stay apart.
func FuzzPodNames(f *testing.F) {
	f.Add("web-1,web-2,,web", 2)
	f.Add("we\nb,,", 0)
	f.Fuzz(func(t *testing.T, text string, at int) {
		names := strings.Split(text, ",")
		at = int(uint(at) % uint(len(names)))
		want := names[at]
		if strings.Contains(want, "\n") || len(want) > 253 {
			want = ""
		}
		if got := service.PackPodNames(names).At(at); got != want {
			t.Errorf("%q: number %d is %q", names, at, got)
		}
	})
}

// TestEntryPod: a compiled entry knows the pod behind an address, even after another Service took one of its addresses.
// A table that was read back does not know it.
func TestEntryPod(t *testing.T) {
	name := api.Name{Namespace: "shop", Name: "web"}
	addr := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 1, last}) }
	svc := &service.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Created: 2,
		Ports: []service.Port{{Proto: api.TCP, Port: 80}, {Name: "b", Proto: api.TCP, Port: 81}},
	}
	slice := func(names []string, eps ...service.SliceEndpoint) *service.Slice {
		return &service.Slice{Name: name, Service: name, Endpoints: eps, Pods: service.PackPodNames(names), Ports: []service.SlicePort{{Proto: api.TCP, Port: 80}, {Name: "b", Proto: api.TCP, Port: 81}}}
	}
	b := service.NewBuilder()
	b.Set(service.Compile(svc, []*service.Slice{
		slice([]string{"web-1", "web-2"}, service.SliceEndpoint{Addr: addr(1), Ready: true}, service.SliceEndpoint{Addr: addr(2), Terminating: true}),
		slice(nil, service.SliceEndpoint{Addr: addr(3), Ready: true}),
		slice([]string{"web-2-again"}, service.SliceEndpoint{Addr: addr(2)}),
	}, service.Facts{}))
	other := *svc
	other.Name.Name, other.Created, other.Ports = "older", 1, svc.Ports[:1]
	b.Set(service.Compile(&other, nil, service.Facts{}))
	table := b.Table(service.Settings{})
	if n := len(table.Entry(name).Frontends); n != 1 {
		t.Fatalf("%d frontends are left, want one", n)
	}
	var addrs []netip.AddrPort
	for _, port := range []uint16{80, 8080} {
		for last := range byte(4) {
			addrs = append(addrs, netip.AddrPortFrom(addr(last+1), port))
		}
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	want := "[{web-1 false} {web-1 false} {web-2-again false} {web-2-again false} { false} { false} { false} { false}]"
	if got := fmt.Sprint(table.Entry(name).Pods(addrs)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	only := service.Compile(svc, []*service.Slice{slice([]string{"web-2"}, service.SliceEndpoint{Addr: addr(2), Terminating: true})}, service.Facts{})
	if got := fmt.Sprint(only.Pods(addrs[2:3])); got != "[{web-2 true}]" {
		t.Errorf("terminating: %s", got)
	}
	readBack := service.NewTable(service.Settings{}, slices.Collect(table.Frontends()))
	for _, e := range []*service.Entry{readBack.Entry(name), nil} {
		if got := fmt.Sprint(e.Pods(addrs[:1])); got != "[{ false}]" {
			t.Errorf("not compiled: %s", got)
		}
	}
}

// A Service with all endpoints in its routes uses no memory for others.
func TestRetained(t *testing.T) {
	svc := &service.Service{
		Name: api.Name{Namespace: "ns", Name: "dns"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []service.Port{{Name: "dns", Proto: api.UDP, Port: 53, NodePort: 30053}, {Name: "tcp", Proto: api.TCP, Port: 53, NodePort: 30053}},
	}
	frontends := func(eps ...service.SliceEndpoint) []*service.Frontend {
		slice := &service.Slice{Name: svc.Name, Service: svc.Name, Endpoints: eps, Ports: []service.SlicePort{
			{Name: "dns", Proto: api.UDP, Port: 5353}, {Name: "tcp", Proto: api.TCP, Port: 5353},
		}}
		all := service.Compile(svc, []*service.Slice{slice}, service.Facts{Node: service.Node{Name: "n"}}).Frontends
		if len(all) != 4 {
			t.Fatalf("%d frontends, want 4", len(all))
		}
		return all
	}
	one := service.SliceEndpoint{Addr: netip.MustParseAddr("10.244.1.1"), Ready: true, Serving: true}
	two := service.SliceEndpoint{Addr: netip.MustParseAddr("10.244.1.2")}
	for _, f := range frontends(one) {
		if f.Retained != nil {
			t.Errorf("%v: %v besides its routes", f.Key(), f.Retained)
		}
	}
	for _, f := range frontends(one, two) {
		want := "[]"
		if f.Proto == api.TCP {
			want = "[10.244.1.2:5353]"
		}
		if fmt.Sprint(f.Retained) != want {
			t.Errorf("%v: %v besides its routes, want %v", f.Key(), f.Retained, want)
		}
		for _, a := range append(f.FlowEndpoints(), netip.MustParseAddrPort("10.244.1.3:5353")) {
			if want := a.Addr() == one.Addr || f.Proto == api.TCP && a.Addr() == two.Addr; f.KeepsFlowsTo(a) != want {
				t.Errorf("%v: flows to %v may go on: %v, want %v", f.Key(), a, !want, want)
			}
		}
	}
}
