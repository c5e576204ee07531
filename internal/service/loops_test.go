package service_test

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// An endpoint that a user wrote by hand is left out while its address is a frontend, in whatever order the objects
// arrive. No user can remove another's endpoints with external IPs, or a pod's endpoint with a NodePort.
func TestEndpointsThatAreFrontends(t *testing.T) {
	addr := netip.MustParseAddr
	victim := someService(1)
	victim.Namespace = "victim"
	slice := func(a string, pod string) []*service.Slice {
		return []*service.Slice{{
			Name: victim.Name, Service: victim.Name, Pods: service.PackPodNames([]string{pod}),
			Ports:     []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 31000}},
			Endpoints: []service.SliceEndpoint{{Addr: addr(a), Ready: true, Serving: true}},
		}}
	}
	other := func(namespace string, change func(*service.Service)) *service.Service {
		svc := someService(2)
		svc.Namespace = namespace
		svc.Ports = []service.Port{{Name: "http", Proto: api.TCP, Port: 31000}}
		change(svc)
		return svc
	}
	nodePort := func(s *service.Service) { s.Ports[0].NodePort = 31000 }
	external := func(s *service.Service) { s.ExternalIPs = []netip.Addr{addr("203.0.113.7")} }
	balancer := func(s *service.Service) { s.BalancerIPs = []netip.Addr{addr("203.0.113.7")} }
	nothing := func(*service.Service) {}
	facts := service.Facts{Node: service.Node{
		Name: "node-1", NodeAddrs: service.NewAddrSet(addr("172.18.0.11")),
		Settings: service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
	}}
	for name, test := range map[string]struct {
		endpoint, pod string
		other         *service.Service
		refused       bool
	}{
		"a NodePort":                      {"172.18.0.11", "", other("evil", nodePort), true},
		"a NodePort, and a pod":           {"172.18.0.11", "ingress", other("evil", nodePort), false},
		"no NodePort":                     {"172.18.0.11", "", other("evil", nothing), false},
		"a load balancer's":               {"203.0.113.7", "", other("evil", balancer), true},
		"an external IP":                  {"203.0.113.7", "", other("victim", external), true},
		"another namespace's external IP": {"203.0.113.7", "", other("evil", external), false},
		"a ClusterIP":                     {"10.96.0.2", "", other("evil", nothing), true},
		"a pod":                           {"10.244.1.5", "", other("evil", nodePort), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := service.NewBuilder()
			check := func(when string, refused bool) {
				t.Helper()
				table := b.Table(facts.Settings)
				e := table.Entry(victim.Name)
				if n := len(e.Frontends[0].Internal.Endpoints); (n == 0) != refused || (len(e.Problems) == 1) != refused {
					t.Errorf("%s: %d endpoints, problems %v", when, n, e.Problems)
				}
				for _, x := range service.Explain(victim, slice(test.endpoint, test.pod), facts, e) {
					if (x.Internal == service.IsFrontend) != refused {
						t.Errorf("%s: explained as %v", when, x.Internal)
					}
				}
			}
			set := func(svc *service.Service, eps []*service.Slice) { b.Set(service.Compile(svc, eps, facts)) }
			set(victim, slice(test.endpoint, test.pod))
			check("alone", false)
			set(test.other, nil)
			check("then the other", test.refused)
			set(victim, slice(test.endpoint, test.pod))
			check("again", test.refused)
			b.Delete(test.other.Name)
			check("after the other", false)
		})
	}
}
