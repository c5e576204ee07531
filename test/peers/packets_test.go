package peers

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// packets returns packets from each place, and from each endpoint on the node, to each address and port of each
// Service, and to some addresses and ports without a Service.
func packets(all objects) []scenario.Packet {
	w := &scenario.World
	var out []scenario.Packet
	for _, o := range all {
		svc, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		callers := endpointsHere(all, svc.Name)
		for _, to := range destinations(svc) {
			is4 := to.Addr.Addr().Is4()
			from := slices.Clone(callers[is4])
			for _, p := range scenario.Places() {
				from = append(from, scenario.From{Place: p.Name, Addr: p.Addr(is4)})
			}
			for _, f := range from {
				out = append(out, packet(f, to))
			}
			if to.Addr.Port() >= 30000 { // a NodePort, on loopback too
				lo := netip.IPv6Loopback()
				if is4 {
					lo = netip.AddrFrom4([4]byte{127, 0, 0, 1})
				}
				out = append(out, packet(scenario.From{Place: w.Node.Name, Addr: w.Node.Addr(is4)},
					service.Key{Addr: netip.AddrPortFrom(lo, to.Addr.Port()), Proto: to.Proto}))
			}
		}
	}
	for _, text := range []string{"10.96.77.1:80", "[fd00:10:96::7777]:80"} {
		to := service.Key{Addr: netip.MustParseAddrPort(text), Proto: api.TCP}
		for _, p := range scenario.Places() {
			out = append(out, packet(scenario.From{Place: p.Name, Addr: p.Addr(to.Addr.Addr().Is4())}, to))
		}
	}
	slices.SortFunc(out, func(a, b scenario.Packet) int { // maps have no order, a seed has
		if a.Text < b.Text {
			return -1
		}
		return 1
	})
	return out
}

func packet(f scenario.From, to service.Key) scenario.Packet {
	return scenario.Packet{Text: fmt.Sprintf("from=%s to=%v", f.Place, to), From: f, To: to.Addr, Proto: to.Proto}
}

// endpointsHere returns the pods on node-1 that are endpoints of a Service,
// by family: true is IPv4.
func endpointsHere(all objects, name string) map[bool][]scenario.From {
	out := map[bool][]scenario.From{}
	for _, o := range all {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, e := range s.Endpoints {
			a := netip.MustParseAddr(e.Addresses[0])
			f := scenario.From{Place: a.String(), Addr: a}
			here := e.NodeName != nil && *e.NodeName == "node-1" && a != scenario.World.Node.Addr(a.Is4())
			if here && !slices.Contains(out[a.Is4()], f) {
				out[a.Is4()] = append(out[a.Is4()], f)
			}
		}
	}
	return out
}

// destinations returns all addresses and ports of a Service, and a neighbouring port of each.
func destinations(svc *corev1.Service) []service.Key {
	var addrs []string
	if svc.Spec.ClusterIP != corev1.ClusterIPNone {
		addrs = append(addrs, svc.Spec.ClusterIPs...)
	}
	addrs = append(addrs, svc.Spec.ExternalIPs...)
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			addrs = append(addrs, in.IP)
		}
	}
	var out []service.Key
	add := func(a netip.Addr, port int32, proto api.Proto) {
		if k := (service.Key{Addr: netip.AddrPortFrom(a, uint16(port)), Proto: proto}); !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	w := &scenario.World
	for _, p := range svc.Spec.Ports {
		proto, err := api.ParseProto(string(p.Protocol))
		if err != nil {
			continue
		}
		for _, text := range addrs {
			add(netip.MustParseAddr(text), p.Port, proto)
			add(netip.MustParseAddr(text), 81, proto)
		}
		if p.NodePort == 0 {
			continue
		}
		for _, a := range []netip.Addr{w.Node.V4, w.Node.V6, w.Extra.V4, w.Extra.V6} {
			add(a, p.NodePort, proto)
		}
	}
	return out
}

// sample returns n packets, most of them to Services.
func (g *generator) sample(all []scenario.Packet, table *service.Table, n int) []scenario.Packet {
	g.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var out []scenario.Packet
	few := map[string]int{}
	for _, p := range all {
		want, known := scenario.Predict(table, p)
		kind := want.Action.String()
		switch {
		case !known:
			kind = "passed on"
		case p.To.Port() == 81:
			kind += " for its port"
		}
		if len(out) == n || want.Action != service.Forward && few[kind] > n/10 {
			continue
		}
		few[kind]++
		out = append(out, p)
	}
	return out
}
