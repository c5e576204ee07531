package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// TestBackends: a gateway gets the endpoints that the proxy of its node would choose, also of headless Services.
func TestBackends(t *testing.T) {
	endpoint := func(addr string, change func(*SliceEndpoint)) SliceEndpoint {
		e := SliceEndpoint{Addr: netip.MustParseAddr(addr), Node: "node-1", Ready: true, Serving: true}
		change(&e)
		return e
	}
	ready := func(*SliceEndpoint) {}
	terminating := func(e *SliceEndpoint) { e.Ready, e.Terminating = false, true }
	unready := func(e *SliceEndpoint) { e.Ready, e.Serving = false, false }
	for name, test := range map[string]struct {
		svc       Service
		endpoints []SliceEndpoint
		want      string
	}{
		"ready pods":           {endpoints: []SliceEndpoint{endpoint("10.0.0.1", ready), endpoint("10.0.0.2", unready), endpoint("10.0.0.3", terminating)}, want: "10.0.0.1:8080"},
		"only terminating":     {endpoints: []SliceEndpoint{endpoint("10.0.0.3", terminating), endpoint("10.0.0.2", unready)}, want: "10.0.0.3:8080"},
		"none":                 {endpoints: []SliceEndpoint{endpoint("10.0.0.2", unready)}},
		"IPv6 alone":           {endpoints: []SliceEndpoint{endpoint("2001:db8:9::1", ready)}, want: "[2001:db8:9::1]:8080"},
		"both families":        {endpoints: []SliceEndpoint{endpoint("2001:db8:9::1", ready), endpoint("10.0.0.1", ready)}, want: "10.0.0.1:8080"},
		"policy Local":         {svc: Service{InternalLocal: true}, endpoints: []SliceEndpoint{endpoint("10.0.0.9", func(e *SliceEndpoint) { e.Node = "node-2" })}, want: "10.0.0.9:8080"},
		"with addresses, node": {svc: Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, BalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}}, endpoints: []SliceEndpoint{endpoint("10.0.0.1", ready)}, want: "10.0.0.1:8080"},
		"a dead node":          {endpoints: []SliceEndpoint{endpoint("10.0.0.1", ready), endpoint("10.0.0.9", func(e *SliceEndpoint) { e.Node = "dead" })}, want: "10.0.0.1:8080"},
	} {
		t.Run(name, func(t *testing.T) {
			svc := test.svc
			svc.Name = api.Name{Namespace: "shop", Name: "web"}
			svc.Ports = []Port{{Name: "http", Proto: api.TCP, Port: 80, NodePort: 30080}}
			slice := &Slice{Name: api.Name{Namespace: "shop", Name: "web-1"}, Service: svc.Name, Ports: []SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}}, Endpoints: test.endpoints}
			slices.SortFunc(slice.Endpoints, func(a, b SliceEndpoint) int { return a.Addr.Compare(b.Addr) })
			var got []string
			for port, all := range Backends(&svc, []*Slice{slice}, Facts{Node: Node{Name: "node-1"}, Dead: []string{"dead"}}) {
				if port != (api.PortName{Name: svc.Name, Port: "http"}) {
					t.Errorf("port %v", port)
				}
				for _, e := range all {
					got = append(got, fmt.Sprint(e.Addr))
				}
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
	}
}
