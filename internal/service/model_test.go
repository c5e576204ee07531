package service_test

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// world contains all objects at one moment. It is the input of the slow reference.
type world struct {
	node     service.Node
	services map[api.Name]*service.Service
	slices   map[api.Name]*service.Slice
}

func newWorld(node service.Node) *world {
	return &world{node: node, services: map[api.Name]*service.Service{}, slices: map[api.Name]*service.Slice{}}
}

func (w *world) apply(e scenario.Event) {
	switch {
	case e.Service != nil:
		w.services[e.Service.Name] = e.Service
	case e.Slice != nil:
		w.slices[e.Slice.Name] = e.Slice
	case e.GoneService != api.Name{}:
		delete(w.services, e.GoneService)
	default:
		delete(w.slices, e.GoneSlice)
	}
}

// table computes kube-proxy's behaviour for this world, rule by rule and without regard to cost. The oldest Service
// comes first, and each Service takes the addresses that are still free. An address that is some Service's ClusterIP
// belongs to that Service alone.
func (w *world) table() map[service.Key]*service.Frontend {
	var svcs []*service.Service
	for _, s := range w.services {
		svcs = append(svcs, s)
	}
	slices.SortFunc(svcs, func(a, b *service.Service) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
	})
	all, alone := map[service.Key]*service.Frontend{}, map[netip.Addr]bool{}
	for _, clusterIP := range []bool{true, false} {
		for _, s := range svcs {
			for key, f := range w.frontends(s) {
				if f.ClusterIP == clusterIP && all[key] == nil && !alone[key.Addr.Addr()] {
					all[key] = f
				}
			}
		}
		for key := range all {
			alone[key.Addr.Addr()] = true
		}
	}
	return all
}

func (w *world) frontends(s *service.Service) map[service.Key]*service.Frontend {
	all := map[service.Key]*service.Frontend{}
	add := func(p service.Port, ip netip.Addr, port uint16, in, out *service.Route) {
		f := &service.Frontend{
			Addr: netip.AddrPortFrom(ip, port), Proto: p.Proto,
			Service: api.PortName{Name: s.Name, Port: p.Name}, Internal: in, External: out,
		}
		if all[f.Key()] == nil {
			all[f.Key()] = f
		}
	}
	var used []service.Port
	for _, ip := range s.ClusterIPs {
		used = nil
		for _, p := range s.Ports {
			if slices.ContainsFunc(used, func(q service.Port) bool {
				return q.Proto == p.Proto && (q.Name == p.Name || q.Port == p.Port)
			}) {
				continue
			}
			used = append(used, p)
			r := w.rules(s, p, ip.Is4())
			add(p, ip, p.Port, r.internal(), r.internal())
			all[service.Key{Addr: netip.AddrPortFrom(ip, p.Port), Proto: p.Proto}].ClusterIP = true
			in := r.route(r.cluster(), service.MasqueradeAll)
			out := in
			if s.ExternalLocal {
				in, out = r.route(r.cluster(), service.MasqueradeOffCluster), r.localRoute(service.MasqueradeHairpin)
			}
			any := netip.MustParseAddr("::")
			if ip.Is4() {
				any = netip.MustParseAddr("0.0.0.0")
			}
			if p.NodePort != 0 {
				add(p, any, p.NodePort, in, out)
			}
			for i, vip := range slices.Concat(s.BalancerIPs, s.ExternalIPs) {
				key := service.Key{Addr: netip.AddrPortFrom(vip, p.Port), Proto: p.Proto}
				if vip.Is4() != ip.Is4() || all[key] != nil || w.refused(vip) || slices.Contains(s.ClusterIPs, vip) {
					continue
				}
				add(p, vip, p.Port, in, out)
				if i < len(s.BalancerIPs) {
					all[key].Sources, all[key].LoadBalancer = sources(s.Sources, vip, w.node), true
				}
			}
		}
	}
	for _, f := range all {
		f.Affinity, f.Balance = s.Affinity, w.node.Balance
		if s.Balanced && !w.node.Unsupported.Has(s.Balance) {
			f.Balance = s.Balance
		}
	}
	return all
}

// refused reports whether no Service may use an address for clients outside the cluster.
func (w *world) refused(a netip.Addr) bool {
	return slices.Contains(w.node.NodeAddrs, a) || slices.Contains(w.node.APIServers, a) ||
		slices.ContainsFunc(w.node.Settings.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// sources returns the clients that may use a load balancer's address. It leaves out ranges that another range contains.
func sources(all []netip.Prefix, vip netip.Addr, node service.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if p.Addr().Is4() != vip.Is4() {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		out = append(out, p)
		if p.Contains(node.Primary4) || p.Contains(node.Primary6) {
			out = append(out, netip.PrefixFrom(vip, vip.BitLen()))
		}
	}
	var kept []netip.Prefix
	for _, p := range out {
		inOther := slices.ContainsFunc(out, func(o netip.Prefix) bool { return o != p && o.Contains(p.Addr()) && o.Bits() < p.Bits() })
		if !inOther && !slices.Contains(kept, p) {
			kept = append(kept, p)
		}
	}
	slices.SortFunc(kept, netip.Prefix.Compare)
	return kept
}

// rules are the rules for the endpoints of one port in one family.
type rules struct {
	node service.Node
	svc  *service.Service
	eps  map[netip.AddrPort]service.SliceEndpoint
	is4  bool
}

func (w *world) rules(s *service.Service, p service.Port, is4 bool) rules {
	r := rules{node: w.node, svc: s, is4: is4, eps: map[netip.AddrPort]service.SliceEndpoint{}}
	for _, slice := range w.slices {
		if slice.Service != s.Name {
			continue
		}
		for _, q := range slice.Ports {
			if q.Name != p.Name || q.Proto != p.Proto {
				continue
			}
			for _, e := range slice.Endpoints {
				at := netip.AddrPortFrom(e.Addr, q.Port)
				if old, ok := r.eps[at]; e.Addr.Is4() == is4 && (!ok || better(e, old, w.node.Name)) {
					r.eps[at] = e
				}
			}
		}
	}
	return r
}

// better chooses between two endpoints with the same address and port. Kubernetes only specifies that a terminating
// endpoint loses.
func better(a, b service.SliceEndpoint, node string) bool {
	yes := func(x, y bool) int {
		if x == y {
			return 0
		} else if x {
			return -1
		}
		return 1
	}
	return cmp.Or(
		yes(!a.Terminating, !b.Terminating), yes(a.Ready, b.Ready), yes(a.Serving, b.Serving),
		yes(a.Node == node, b.Node == node),
		slices.Compare(a.NodeHints, b.NodeHints), slices.Compare(a.ZoneHints, b.ZoneHints),
		cmp.Compare(share(b), share(a))) < 0
}

// share returns the weight that a pod asks for.
func share(e service.SliceEndpoint) int {
	if e.HasWeight {
		return int(e.Weight)
	}
	return 1
}

// shares returns the endpoints with a share, and their shares. These are the smallest weights with the same
// proportions, unless all weights are equal.
func shares(eps []service.Endpoint, of map[netip.AddrPort]service.SliceEndpoint) []service.Endpoint {
	var out []service.Endpoint
	for _, e := range eps {
		if e.Weight = uint16(share(of[e.Addr])); e.Weight > 0 {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return eps
	}
	for d := uint16(256); d > 1; d-- {
		if !slices.ContainsFunc(out, func(e service.Endpoint) bool { return e.Weight%d != 0 }) {
			for i := range out {
				out[i].Weight /= d
			}
		}
	}
	if !slices.ContainsFunc(out, func(e service.Endpoint) bool { return e.Weight != out[0].Weight }) {
		for i := range out {
			out[i].Weight = 0
		}
	}
	return out
}

func (r rules) filter(keep func(service.SliceEndpoint) bool) []service.Endpoint {
	var out []service.Endpoint
	for at, e := range r.eps {
		if keep(e) {
			out = append(out, service.Endpoint{Addr: at, Local: e.Node == r.node.Name})
		}
	}
	slices.SortFunc(out, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	if r.svc.Weighted {
		return shares(out, r.eps)
	}
	return out
}

func ready(e service.SliceEndpoint) bool    { return e.Ready }
func draining(e service.SliceEndpoint) bool { return e.Serving && e.Terminating }

func (r rules) cluster() []service.Endpoint {
	ours := ready
	forNode := func(e service.SliceEndpoint) bool { return slices.Contains(e.NodeHints, r.node.Name) }
	forZone := func(e service.SliceEndpoint) bool { return slices.Contains(e.ZoneHints, r.node.Zone) }
	if r.hinted(func(e service.SliceEndpoint) []string { return e.NodeHints }, forNode) {
		ours = func(e service.SliceEndpoint) bool { return e.Ready && forNode(e) }
	} else if r.node.Zone != "" && r.hinted(func(e service.SliceEndpoint) []string { return e.ZoneHints }, forZone) {
		ours = func(e service.SliceEndpoint) bool { return e.Ready && forZone(e) }
	}
	if eps := r.filter(ours); len(eps) > 0 {
		return eps
	}
	return r.filter(draining)
}

// hinted: every ready endpoint has a hint, and at least one hint is for this node or zone.
func (r rules) hinted(hints func(service.SliceEndpoint) []string, ours func(service.SliceEndpoint) bool) bool {
	one := false
	for _, e := range r.eps {
		if e.Ready && len(hints(e)) == 0 {
			return false
		}
		one = one || e.Ready && ours(e)
	}
	return one
}

func (r rules) local() []service.Endpoint {
	here := func(of func(service.SliceEndpoint) bool) func(service.SliceEndpoint) bool {
		return func(e service.SliceEndpoint) bool { return of(e) && e.Node == r.node.Name }
	}
	if eps := r.filter(here(ready)); len(eps) > 0 {
		return eps
	}
	return r.filter(here(draining))
}

func (r rules) internal() *service.Route {
	m := service.MasqueradeHairpin
	if detect4, detect6 := r.node.Settings.Detect(); r.is4 && detect4 || !r.is4 && detect6 {
		m = service.MasqueradeOffCluster
	}
	if r.node.MasqueradeAll {
		m = service.MasqueradeAll
	}
	if r.svc.InternalLocal {
		return r.localRoute(m)
	}
	return r.route(r.cluster(), m)
}

func (r rules) localRoute(m service.Masquerade) *service.Route {
	route := r.route(r.local(), m)
	route.Local = len(route.Endpoints) > 0
	return route
}

func (r rules) route(eps []service.Endpoint, m service.Masquerade) *service.Route {
	if len(eps) > 0 {
		return &service.Route{Endpoints: eps, Masquerade: m}
	}
	if len(r.filter(ready))+len(r.filter(draining)) > 0 {
		return &service.Route{Action: service.Drop}
	}
	return &service.Route{Action: service.Reject}
}

// The test compares with the slow reference after each random event: the policy, the owner of each address, and Diff.
// It also checks that an old table does not change.
func TestModel(t *testing.T) {
	rng := testnet.Random(t)
	for range 40 {
		checkModel(t, rand.New(rand.NewPCG(rng.Uint64(), 0)), 60)
	}
}

// algorithms returns some or all algorithms.
func algorithms(rng *rand.Rand) service.Algorithms {
	return []service.Algorithms{
		0, service.AlgorithmsOf(service.Random), ^service.Algorithms(0), service.AlgorithmsOf(service.Random, service.RoundRobin, service.Maglev),
	}[rng.IntN(4)]
}

// FuzzModel searches for a seed that breaks TestModel.
func FuzzModel(f *testing.F) {
	f.Add(uint64(1), uint8(20))
	f.Fuzz(func(t *testing.T, seed uint64, events uint8) {
		checkModel(t, rand.New(rand.NewPCG(seed, 0)), int(events))
	})
}

func checkModel(t *testing.T, rng *rand.Rand, events int) {
	t.Helper()
	r := scenario.NewRandom(rng)
	r.Algorithms = algorithms(rng)
	facts := r.Facts()
	w, state, shadow := newWorld(facts.Node), scenario.NewState(facts), newShadow(t)
	for i := range events {
		e := r.Event()
		w.apply(e)
		state.Apply(e)
		if rng.IntN(3) == 0 {
			continue // several events in one table
		}
		got := state.Table()
		shadow.follow(got)
		want := w.table()
		n := 0
		for f := range got.Frontends() {
			n++
			if ref := want[f.Key()]; !f.Equal(ref) {
				t.Fatalf("event %d: %v\n got %+v\nwant %+v\n%s", i, f.Key(), f, ref, got)
			}
		}
		if n != len(want) {
			t.Fatalf("event %d: %d frontends, want %d\n%s", i, n, len(want), got)
		}
		if !got.Settings.Equal(facts.Settings) {
			t.Fatalf("event %d: settings %v", i, got.Settings)
		}
	}
}
