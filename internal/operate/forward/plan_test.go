package forward

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

func named(name string) api.Name { return api.Name{Namespace: "shop", Name: name} }

// slice returns the endpoints of a Service: "web-1 ready", "web-2 terminating", "- ready" (no pod).
func slice(of, port string, number uint16, endpoints ...string) *service.Slice {
	s := &service.Slice{Name: named(of + "-x"), Service: named(of), Ports: []service.SlicePort{{Name: port, Proto: api.TCP, Port: number}}}
	var pods []string
	for i, e := range endpoints {
		pod, state, _ := strings.Cut(e, " ")
		pods = append(pods, strings.TrimPrefix(pod, "-"))
		s.Endpoints = append(s.Endpoints, service.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), Ready: state == "ready", Serving: state != "not-ready", Terminating: state == "terminating",
		})
	}
	s.Pods = service.PackPodNames(pods)
	return s
}

// TestPlan: what is forwarded where, and what is not and why.
func TestPlan(t *testing.T) {
	port := func(name string, n uint16) service.Port { return service.Port{Name: name, Proto: api.TCP, Port: n} }
	web := &kube.NamedService{Service: service.Service{Name: named("web"), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []service.Port{port("http", 80)}}}
	db := &kube.NamedService{Service: service.Service{Name: named("db"), Ports: []service.Port{port("", 5432)}}, Headless: true}
	dns := &kube.NamedService{Service: service.Service{Name: named("dns"), Ports: []service.Port{{Name: "dns", Proto: api.UDP, Port: 53}, port("dns-tcp", 53)}}}
	out := &kube.NamedService{Service: service.Service{Name: named("out"), Ports: []service.Port{port("", 443)}}, External: "example.org"}
	none := &kube.NamedService{Service: service.Service{Name: named("none")}, Headless: true}
	all := []*kube.NamedService{db, dns, none, out, web}
	for _, tc := range []struct {
		name   string
		slices []*service.Slice
		choice Choice
		want   string
	}{
		{"all", []*service.Slice{slice("web", "http", 8080, "web-1 ready", "web-2 not-ready", "web-3 ready"), slice("db", "", 5433, "db-0 ready", "db-1 ready")}, Choice{}, `
shop/db : 5433 → db-0:5433 db-1:5433
shop/db db-0 : 5433 → db-0:5433
shop/db db-1 : 5433 → db-1:5433
shop/dns : 53 →
shop/web : 80 → web-1:8080 web-3:8080
left shop/dns 53: the API server carries no UDP
left shop/none 0: it has no ports
left shop/out 0: it stands for example.org, which is outside of the cluster
`},
		{"a pod that ends serves if there is no other", []*service.Slice{slice("web", "http", 8080, "web-1 terminating", "web-2 not-ready")}, Choice{Ports: map[api.Name][]uint16{named("web"): nil}}, `
shop/web : 80 → web-1:8080
`},
		{"an endpoint that is no pod", []*service.Slice{slice("web", "http", 8080, "- ready", "web-2 ready")}, Choice{Ports: map[api.Name][]uint16{named("web"): {80}}}, `
shop/web : 80 → web-2:8080
`},
		{"what is not there", nil, Choice{Cluster: "test", Ports: map[api.Name][]uint16{named("web"): {81}, named("weeb"): nil}}, `
left shop/web 81: the Service has no such port
left shop/weeb 0: there is no such Service
`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			endpoints := map[api.Name][]*service.Slice{}
			for _, s := range tc.slices {
				endpoints[s.Service] = append(endpoints[s.Service], s)
			}
			targets, left := Plan(all, endpoints, tc.choice)
			var b strings.Builder
			for _, x := range targets {
				fmt.Fprintf(&b, "%s %s", x.Service, strings.TrimPrefix(x.Host+" ", " "))
				fmt.Fprintf(&b, ": %d →", x.Port)
				for _, e := range x.Backends {
					fmt.Fprintf(&b, " %s:%d", e.Pod.Name, e.Port)
				}
				b.WriteString("\n")
			}
			for _, x := range left {
				fmt.Fprintf(&b, "left %s %d: %s\n", x.Service, x.Port, x.Why)
			}
			if got := b.String(); got != strings.TrimPrefix(tc.want, "\n") {
				t.Errorf("got\n%s\nwant%s", got, tc.want)
			}
		})
	}
}
