package userspace_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// many is a table of n Services next to the rig's own Service, which has affinity.
func (r *rig) many(n int, which ...int) *service.Table {
	t := r.service(api.TCP, which...)
	all := t.Sorted()
	for _, f := range all {
		f.Affinity = time.Hour
	}
	for i := range n {
		route := &service.Route{Endpoints: []service.Endpoint{{Addr: r.at(0)}}}
		all = append(all, &service.Frontend{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), 80), Internal: route, External: route, ClusterIP: true,
			Service: api.PortName{Name: api.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}},
		})
	}
	return service.NewTable(t.Settings, all)
}

// TestRestart: the next process reads the kernel once. It writes only elements, rules, routes and ip rules that differ.
// Clients keep their endpoints.
func TestRestart(t *testing.T) {
	r := newRig(t, 2)
	for i := range 2 {
		r.pods[i].Serve("tcp", r.at(i))
	}
	table := r.many(200, 0, 1)
	r.sync(table)
	home := r.client.Ask("tcp", vip, patience).At
	changes := r.node.Changes()
	for _, c := range []struct {
		what  string
		table *service.Table
		most  int // largest number of changes
	}{
		{"the same", table, 0},
		{"a Service more", r.many(201, 0, 1), 10},
		{"a Service less", table, 10},
	} {
		r.dp.Close() // writes the client's affinity
		changes.Count()
		r.dp = open(t)
		reads := userspace.CountReads(r.dp)
		must(t, r.node.Do(func() error {
			found, err := r.dp.Adopt(t.Context())
			if err == nil && !found.Found {
				t.Errorf("%s: found nothing", c.what)
			}
			return err
		}))
		r.sync(c.table)
		if n := changes.Count(); n > c.most || (n == 0) != (c.most == 0) {
			t.Errorf("%s: %d changes in the kernel, want %d at most", c.what, n, c.most)
		}
		if *reads != 1 {
			t.Errorf("%s: it read the kernel %d times", c.what, *reads)
		}
		if got := r.client.Ask("tcp", vip, patience); got.Outcome != testnet.Answered || got.At != home {
			t.Errorf("%s: %v, was at %v", c.what, got, home)
		}
	}
}
