package service_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// TestOnNodes: a Service with nodes' own addresses is served only at the addresses of this node. An address that the
// kubelet of another node claims is nothing here.
func TestOnNodes(t *testing.T) {
	ips := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	for _, test := range []struct {
		name    string
		onNodes bool
		known   []netip.Addr // addresses of other nodes that the agent knows
		want    string
	}{
		{"a node's own", true, nil, "[192.0.2.11:80]"},
		{"other nodes are known", true, ips("192.0.2.12", "8.8.8.8"), "[192.0.2.11:80]"},
		{"of a pool", false, nil, "[8.8.8.8:80 192.0.2.11:80 192.0.2.12:80]"},
	} {
		svc := &service.Service{
			Name: api.Name{Namespace: "any", Name: "web"}, ClusterIPs: ips("10.96.0.9"), BalancerIPs: ips("192.0.2.11", "192.0.2.12", "8.8.8.8"), OnNodes: test.onNodes,
			Ports: []service.Port{{Proto: api.TCP, Port: 80}}, CheckedPorts: []service.CheckedPort{{Proto: api.TCP, Port: 80}},
		}
		own := ips("192.0.2.11")
		facts := service.Facts{Node: service.Node{Name: "node-1", Limits: service.DefaultLimits(), OwnAddrs: service.NewAddrSet(own...),
			NodeAddrs: service.NewAddrSet(append(own, test.known...)...)}}
		e := service.Compile(svc, nil, facts)
		var got []string
		for _, f := range e.Frontends {
			if !f.ClusterIP {
				got = append(got, f.Addr.String())
			}
		}
		if fmt.Sprint(got) != test.want || len(e.Problems) > 0 {
			t.Errorf("%s: served at %v, problems %v; want %s", test.name, got, e.Problems, test.want)
		}
	}
}
