package flow_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestStaleAgreesWithChecker: Stale finds the wrong flows between two tables. A Checker of the later table must find
// the same flows among the allowed flows of the earlier table, except where it lacks the knowledge.
func TestStaleAgreesWithChecker(t *testing.T) {
	rng := rand.New(rand.NewPCG(testnet.Seed(t), 9))
	local := func(netip.Addr) bool { return true }
	checked, ended := 0, 0
	for range 2000 {
		from, to := randomTable(rng), randomTable(rng)
		stale := map[flow.Key]flow.Flow{}
		for _, f := range flow.Stale(from, to) {
			stale[f.Key()] = f
		}
		checker := flow.NewChecker(to)
		owners := map[service.Key]api.Name{}
		for f := range to.Frontends() {
			owners[f.Key()] = f.Service.Name
		}
		for f := range from.Frontends() {
			if owner, is := owners[f.Key()]; !is && !f.ClusterIP || f.Proto == api.TCP && owner != f.Service.Name {
				continue // a Checker cannot know the flow's earlier Service
			}
			for _, a := range f.FlowEndpoints() {
				exists := flow.Flow{Proto: f.Proto, Frontend: f.Addr, Endpoint: a}
				want, is := stale[exists.Key()]
				if f.NodePort() {
					exists.Frontend = netip.AddrPortFrom(netip.MustParseAddr("172.18.0.11"), f.Addr.Port())
				}
				got, wrong := checker.Check(exists, local)
				if got.OnlyUnanswered && !is && !routed(f, a) {
					continue // the flow was wrong before too
				}
				if wrong != is || want.OnlyUnanswered != got.OnlyUnanswered || is && (want.Unconfirmed && !got.Unconfirmed || want.Namespace != got.Namespace && f.Proto == api.TCP) {
					t.Fatalf("%v: Stale %v %+v, Checker %v %+v\nfrom %v\nto %v", exists, is, want, wrong, got, from.Sorted(), to.Sorted())
				}
				checked++
				if is {
					ended++
				}
			}
			untranslated := flow.Flow{Proto: f.Proto, Frontend: f.Addr, Endpoint: f.Addr}
			if (f.Proto == api.UDP && !f.NodePort() || f.OwnsAddress()) && !f.KeepsFlows() {
				got, wrong := checker.Check(untranslated, local)
				if want, is := stale[flow.Key{Proto: f.Proto, Frontend: f.Addr}]; is != wrong || want.OnlyUnanswered != (got.OnlyUnanswered && wrong) {
					t.Fatalf("%v untranslated: Stale %v, Checker %v", f.Key(), is, wrong)
				}
				checked++
			}
		}
	}
	if ended < checked/20 || ended > checked*19/20 {
		t.Errorf("%d of %d flows ended: this proves little", ended, checked)
	}
}

// routed reports whether an endpoint gets new flows.
func routed(f *service.Frontend, a netip.AddrPort) bool {
	return slices.ContainsFunc(slices.Concat(f.Internal.Endpoints, f.External.Endpoints), func(e service.Endpoint) bool { return e.Addr == a })
}

// randomTable has up to three Services with few addresses and endpoints, so that two tables share most of them.
func randomTable(rng *rand.Rand) *service.Table {
	b := service.NewBuilder()
	for i := range 3 {
		if rng.IntN(6) == 0 {
			continue
		}
		svc := dns(func(s *service.Service) {
			s.Name.Name = string(rune('a' + i))
			s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + (i+rng.IntN(8)/7)%3)})}
			s.Created = int64(i)
			s.Termination = service.TerminationPolicy(rng.IntN(3))
			s.ExternalLocal = rng.IntN(4) == 0
			for p := range s.Ports {
				s.Ports[p].NodePort = uint16(30000 + i)
				if rng.IntN(5) == 0 {
					s.Ports[p].NodePort = 0
				}
			}
		})
		var eps []service.SliceEndpoint
		for last := range byte(4) {
			if rng.IntN(3) > 0 {
				eps = append(eps, pod(10*byte(i)+last, rng.IntN(2) == 0, rng.IntN(3) > 0, rng.IntN(4) == 0))
			}
		}
		slice := &service.Slice{Name: svc.Name, Service: svc.Name, Endpoints: eps, Ports: []service.SlicePort{
			{Name: "dns", Proto: api.UDP, Port: 5353}, {Name: "tcp", Proto: api.TCP, Port: 5353},
		}}
		b.Set(service.Compile(svc, []*service.Slice{slice}, service.Facts{Node: service.Node{Name: "n"}}))
	}
	return b.Table(service.Settings{
		NodePorts:    []netip.Prefix{netip.MustParsePrefix("172.18.0.0/24")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	})
}
