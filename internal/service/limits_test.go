package service_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// greedy returns a Service with the given numbers of ports, external IPs and source ranges.
func greedy(i, ports, externals, ranges int) *service.Service {
	svc := someService(i)
	svc.Ports = nil
	for k := range ports {
		svc.Ports = append(svc.Ports, service.Port{Name: fmt.Sprint("p", k), Proto: api.TCP, Port: uint16(1 + k)})
	}
	for k := range externals {
		svc.BalancerIPs = append(svc.BalancerIPs, addrOf(k))
	}
	for k := range ranges {
		svc.Sources = append(svc.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + k>>16), byte(k >> 8), byte(k)}), 32))
	}
	return svc
}

// portSlices returns the slices of a greedy Service with n endpoints. A third of them is not ready.
func portSlices(svc *service.Service, n int) []*service.Slice {
	all := hugeSlices(svc.Name, n)
	for _, s := range all {
		s.Ports = nil
		for _, p := range svc.Ports {
			s.Ports = append(s.Ports, service.SlicePort{Name: p.Name, Proto: p.Proto, Port: 8000 + p.Port})
		}
		for i := range s.Endpoints {
			s.Endpoints[i].Ready = i%3 != 0
		}
	}
	return all
}

// A Service's parts above a limit are left out and reported. The parts within the limit are served.
func TestLimits(t *testing.T) {
	limits := service.Limits{Ports: 10, ExternalAddresses: 4, Endpoints: 60, SourceRanges: 40, Frontends: 30}
	tests := map[string]struct {
		svc       *service.Service
		endpoints int
		frontends int
		reasons   string
		each      int // number of endpoints of each port
	}{
		"within":          {greedy(1, 10, 2, 2), 6, 30, "", 4},
		"ports":           {greedy(1, 11, 0, 0), 3, 10, "TooManyPorts", 2},
		"addresses":       {greedy(1, 2, 5, 0), 3, 10, "TooManyExternalAddresses", 2},
		"frontends":       {greedy(1, 10, 4, 0), 3, 30, "TooManyFrontends", 2},
		"endpoints":       {greedy(1, 10, 0, 0), 90, 10, "TooManyEndpoints", 6},
		"endpoints, one":  {greedy(1, 1, 0, 0), 90, 1, "TooManyEndpoints", 60},
		"source ranges":   {greedy(1, 3, 2, 7), 3, 9, "TooManySourceRanges", 2},
		"all of them":     {greedy(1, 99, 99, 99), 99, 30, "TooManyEndpoints TooManyExternalAddresses TooManyFrontends TooManyPorts TooManySourceRanges", 6},
		"no limit at all": {greedy(1, 99, 9, 9), 99, 990, "", 66},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			facts := service.Facts{Node: service.Node{Name: "node-1", Limits: limits}}
			if name == "no limit at all" {
				facts.Limits = service.Limits{}
			}
			eps := portSlices(test.svc, test.endpoints)
			e := service.Compile(test.svc, eps, facts)
			var reasons []string
			for _, p := range e.Problems {
				reasons = append(reasons, p.Reason)
				if !strings.Contains(p.Message, "--service-limits") {
					t.Errorf("%s does not say what to do: %s", p.Reason, p.Message)
				}
			}
			slices.Sort(reasons)
			if got := strings.Join(reasons, " "); got != test.reasons {
				t.Errorf("problems %q, want %q", got, test.reasons)
			}
			if len(e.Frontends) != test.frontends {
				t.Errorf("%d frontends, want %d", len(e.Frontends), test.frontends)
			}
			for _, f := range e.Frontends {
				if n := len(f.Internal.Endpoints); n != test.each {
					t.Fatalf("%v has %d endpoints, want %d", f.Key(), n, test.each)
				}
				closed := len(f.Sources) == 1 && f.Sources[0].Addr() == netip.MustParseAddr("255.255.255.255")
				if strings.Contains(test.reasons, "SourceRanges") && !f.ClusterIP != closed {
					t.Fatalf("%v lets in %v", f.Key(), f.Sources)
				}
			}
			slices.Reverse(eps)
			again := service.Compile(test.svc, eps, facts)
			if !slices.EqualFunc(e.Frontends, again.Frontends, (*service.Frontend).Equal) || !slices.Equal(e.Problems, again.Problems) {
				t.Error("the order of slices makes a difference")
			}
		})
	}
}

// The oldest Services of a namespace keep their frontends up to the limit, in whatever order the objects arrive. Other
// namespaces see no effect.
func TestNamespaceLimit(t *testing.T) {
	const limit = 20
	rng := testnet.Random(t)
	over, free := 0, 0
	for range 30 {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		b := service.NewBuilder().Limit(service.Limits{NamespaceFrontends: limit})
		all := map[api.Name]*service.Entry{}
		for range 60 {
			svc := greedy(rng.IntN(15), 1+rng.IntN(6), 0, 0)
			svc.Namespace, svc.Created = []string{"tenant", "other"}[rng.IntN(2)], int64(rng.IntN(3))
			if all[svc.Name] != nil {
				svc.Created = all[svc.Name].Created
			}
			if rng.IntN(3) == 0 {
				b.Delete(svc.Name)
				delete(all, svc.Name)
			} else {
				all[svc.Name] = service.Compile(svc, nil, service.Facts{})
				b.Set(all[svc.Name])
			}
			if rng.IntN(3) == 0 {
				continue
			}
			if checkNamespaces(t, b.Table(service.Settings{}), all, limit) {
				over++
			} else {
				free++
			}
		}
	}
	if over < 100 || free < 100 {
		t.Errorf("%d tables over the limit, %d below: too few", over, free)
	}
}

// checkNamespaces compares a table with a plain implementation of the rule.
func checkNamespaces(t *testing.T, table *service.Table, all map[api.Name]*service.Entry, limit int) (over bool) {
	t.Helper()
	var sorted []*service.Entry
	for _, e := range all {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b *service.Entry) int {
		if a.Created != b.Created {
			return int(a.Created - b.Created)
		}
		return a.Name.Compare(b.Name)
	})
	sums := map[string]int{}
	for _, e := range sorted {
		sums[e.Name.Namespace] += len(e.Frontends)
		want := len(e.Frontends)
		if sums[e.Name.Namespace] > limit {
			want, over = 0, true
		}
		got := table.Entry(e.Name)
		refused := slices.ContainsFunc(got.Problems, func(p api.Problem) bool { return p.Reason == "TooManyFrontends" })
		if len(got.Frontends) != want && want == 0 || refused != (want == 0) {
			t.Fatalf("%v has %d frontends and problems %v, want %d", e.Name, len(got.Frontends), got.Problems, want)
		}
	}
	return over
}

func addrOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }
