package layer2

import (
	"maps"
	"net/netip"

	"github.com/fairway-net/fairway/internal/ipc/rib"
)

// owners are the nodes that announce the addresses with which pods leave the cluster, as far as this
// node knows.
type owners struct {
	asked     []netip.Addr          // the addresses that pods may leave with
	by        map[netip.Addr]string // whose each is by the decision, as of the last beat
	published map[netip.Addr]string
}

// view takes what a beat goes by.
func (o *owners) view(v claimView) {
	o.by = make(map[netip.Addr]string, len(o.asked))
	for _, a := range o.asked {
		if d := v.decisions[a]; d != nil {
			c, _ := v.owner(d)
			if o.by[a] = c.Node; d.Routed {
				o.by[a] = rib.ByRouters
			}
		}
	}
}

// now are the owners: this node is one if it holds the address, another if the address is its by the
// decision.
func (o *owners) now(self string, granted func(netip.Addr) bool) map[netip.Addr]string {
	all := make(map[netip.Addr]string, len(o.asked))
	for _, a := range o.asked {
		node := o.by[a]
		switch {
		case node == rib.ByRouters:
		case granted(a):
			node = self
		case node == self:
			node = "" // it asks for it
		}
		all[a] = node
	}
	return all
}

// publishOwners publishes what has changed.
func (s *Speaker) publishOwners() {
	if s.cfg.Owners == nil || s.owners.by == nil {
		return // what a speaker before said stays until this one knows
	}
	all := s.owners.now(s.cfg.Node, s.member.Granted)
	if s.owners.published != nil && maps.Equal(all, s.owners.published) {
		return
	}
	s.owners.published = all
	s.cfg.Owners(all)
}
