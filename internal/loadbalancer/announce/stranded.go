package announce

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A StrandedAddress is an address that only one node may announce.
type StrandedAddress struct {
	Addr     netip.Addr
	Services []api.Name
}

// Stranded returns the addresses that node announces now, as held says, and that no node may announce while load
// balancers must not use this node. They are sorted by address.
func Stranded(in BGPInput, held []Holding, node string) (all []StrandedAddress) {
	in.Nodes = slices.Clone(in.Nodes)
	for i := range in.Nodes {
		if in.Nodes[i].Name == node {
			in.Nodes[i].Excluded = "it is drained"
		}
	}
	l2 := Decide(in.Input)
	var routed []netip.Prefix
	for _, n := range in.Nodes {
		if n.Name != node {
			routed = append(routed, in.prefixes(n.Name)...)
		}
	}
	for a, services := range in.sharing() {
		announces := slices.ContainsFunc(held, func(h Holding) bool {
			return h.Node == node && (h.Addrs == nil || slices.Contains(h.Addrs, a)) &&
				slices.ContainsFunc(services, func(s *Service) bool { return s.Name == h.Service })
		})
		d, byBGP := l2[a], slices.ContainsFunc(routed, func(p netip.Prefix) bool { return p.Contains(a) })
		if announces && !byBGP && (d == nil || len(d.Candidates()) == 0) {
			all = append(all, StrandedAddress{a, names(services)})
		}
	}
	slices.SortFunc(all, func(x, y StrandedAddress) int { return x.Addr.Compare(y.Addr) })
	return all
}

// prefixes returns the prefixes that a node announces to routers.
func (in BGPInput) prefixes(node string) (all []netip.Prefix) {
	in.Node = node
	for _, s := range DecideBGP(in).Sessions {
		for _, r := range s.Routes {
			if !r.Leaving {
				all = append(all, r.Prefix)
			}
		}
	}
	return all
}
