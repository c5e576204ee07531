// Command growth does what a hostile Service makes package service do, at 10, 100, 1,000 and
// 10,000 of each dimension. TestGrowth builds it with coverage counters, which it writes into
// DIR/DIMENSION/SIZE: how often each statement of the package ran. It prints the allocations.
package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/coverage"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

func main() {
	for name, prepare := range dimensions {
		for size := 10; size <= 10_000; size *= 10 {
			work := prepare(size)
			if err := measure(filepath.Join(os.Args[1], name, fmt.Sprint(size)), work); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Println(name, size, allocations(work))
		}
	}
}

// allocations returns how many there are in one run of work.
func allocations(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// measure runs work once and writes what was counted.
func measure(dir string, work func()) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	work()
	if err := coverage.WriteMetaDir(dir); err != nil {
		return err
	}
	return coverage.WriteCountersDir(dir)
}

var facts = service.Facts{Node: service.Node{Name: "node-1", Primary4: addr(7), Settings: service.Settings{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}}}

// dimensions prepare the work at a size; what they return may run twice.
var dimensions = map[string]func(n int) func(){
	"ports": func(n int) func() {
		svc := tenant(0, n)
		return compile(svc, slice(svc, 0, 3))
	},
	"ports that are twice": func(n int) func() {
		svc := tenant(0, n)
		for i := range svc.Ports {
			svc.Ports[i].Port = 80
		}
		return compile(svc, slice(svc, 0, 3))
	},
	"ports and a slice for each": func(n int) func() {
		svc := tenant(0, n)
		var all []*service.Slice
		for i := range n {
			s := slice(svc, i, 1)
			s.Ports = s.Ports[i : i+1]
			all = append(all, s)
		}
		return compile(svc, all...)
	},
	"source ranges": func(n int) func() {
		svc := tenant(0, 3)
		svc.BalancerIPs = []netip.Addr{addr(1), addr(2)}
		for i := range n {
			svc.Sources = append(svc.Sources, netip.PrefixFrom(addr(i*7919%n), 20+i%13))
		}
		return compile(svc)
	},
	"external addresses": func(n int) func() {
		svc := tenant(0, 1)
		for i := range n {
			svc.ExternalIPs = append(svc.ExternalIPs, addr(i))
		}
		return compile(svc)
	},
	"endpoints": func(n int) func() {
		svc := tenant(0, 2)
		return compile(svc, slice(svc, 0, n))
	},
	"slices": func(n int) func() {
		svc := tenant(0, 1)
		var all []*service.Slice
		for i := range n {
			all = append(all, slice(svc, i, 1))
		}
		return compile(svc, all...)
	},
	"problems": func(n int) func() {
		svc := tenant(0, 1)
		var all []*service.Slice
		for i := range n {
			s := slice(svc, i, 0)
			s.Problems = []api.Problem{{Reason: "Bad", Message: fmt.Sprint("problem ", n-i)}}
			all = append(all, s)
		}
		return compile(svc, all...)
	},
	"Services with one address": func(n int) func() {
		return func() {
			b := service.NewBuilder()
			for _, entries := range [2][]*service.Entry{claimants(n), claimants(n)} { // all are set, and then set again
				for _, e := range entries {
					b.Set(e)
				}
				b.Table(service.Settings{})
			}
		}
	},
	"Services of a full namespace": func(n int) func() {
		b := service.NewBuilder().Limit(service.Limits{NamespaceFrontends: n / 2})
		for i := range n {
			b.Set(service.Compile(tenant(i, 1), nil, facts))
		}
		last := b.Table(service.Settings{})
		return func() {
			b.Set(service.Compile(tenant(n/3, 2), nil, facts))
			next := b.Table(service.Settings{})
			service.Diff(last, next)
		}
	},
}

func compile(svc *service.Service, eps ...*service.Slice) func() {
	return func() {
		b := service.NewBuilder()
		b.Set(service.Compile(svc, eps, facts))
		service.Diff(&service.Table{}, b.Table(service.Settings{}))
	}
}

// claimants are Services that all have one external IP.
func claimants(n int) (all []*service.Entry) {
	for i := range n {
		svc := tenant(i, 1)
		svc.ExternalIPs = []netip.Addr{addr(1)}
		all = append(all, service.Compile(svc, nil, facts))
	}
	return all
}

func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)})
}

// tenant is a Service with n ports.
func tenant(i, n int) *service.Service {
	svc := &service.Service{
		Name:       api.Name{Namespace: "tenant", Name: fmt.Sprint("svc-", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
	}
	for k := range n {
		svc.Ports = append(svc.Ports, service.Port{Name: fmt.Sprint("p", k), Proto: api.TCP, Port: uint16(1 + k)})
	}
	return svc
}

// slice has the ports of a Service and n endpoints.
func slice(svc *service.Service, i, n int) *service.Slice {
	s := &service.Slice{Name: api.Name{Namespace: svc.Namespace, Name: fmt.Sprint("slice-", i)}, Service: svc.Name}
	for _, p := range svc.Ports {
		s.Ports = append(s.Ports, service.SlicePort{Name: p.Name, Proto: p.Proto, Port: 8080})
	}
	for k := range n {
		s.Endpoints = append(s.Endpoints, service.SliceEndpoint{Addr: addr((i + k) * 7919 % 10007), Ready: true, Serving: true})
	}
	return s
}
