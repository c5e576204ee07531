package service

import (
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
)

// backendAddrs stand for the ClusterIPs of a Service. No packet ever has them (RFC 5737, RFC 3849).
var backendAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// Backends returns the endpoints of each port of a Service for a program that connects to them itself: a gateway. They are
// the endpoints that Compile chooses for clients in the cluster, except that internalTrafficPolicy does not count. A
// headless Service has endpoints too. A pod with addresses of both families counts by its IPv4 address.
func Backends(svc *Service, slices []*Slice, facts Facts) map[api.PortName][]Endpoint {
	one := Service{Name: svc.Name, ClusterIPs: backendAddrs, Ports: withoutNodePorts(svc.Ports), Weighted: svc.Weighted, Created: svc.Created}
	facts.Outside, facts.Balances = false, nil
	out := make(map[api.PortName][]Endpoint, len(one.Ports))
	for _, f := range Compile(&one, slices, facts).Frontends {
		if f.Internal == nil || len(f.Internal.Endpoints) == 0 {
			continue
		}
		if _, ok := out[f.Service]; !ok || f.Addr.Addr().Is4() {
			out[f.Service] = f.Internal.Endpoints
		}
	}
	return out
}

func withoutNodePorts(ports []Port) []Port {
	out := make([]Port, len(ports))
	for i, p := range ports {
		p.NodePort = 0
		out[i] = p
	}
	return out
}
