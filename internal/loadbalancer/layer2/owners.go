package layer2

import (
	"maps"
	"net/netip"

	"github.com/fairway-net/fairway/internal/ipc/podroutes"
)

// An owners knows which nodes announce the egress addresses: the addresses with which pods leave the cluster.
type owners struct {
	egress    []netip.Addr          // all egress addresses
	decided   map[netip.Addr]string // the owner of each by the decision at the last heartbeat
	published map[netip.Addr]string
}

// set takes the decisions of a heartbeat.
func (o *owners) set(v claimView) {
	o.decided = make(map[netip.Addr]string, len(o.egress))
	for _, a := range o.egress {
		if d := v.decisions[a]; d != nil {
			c, _ := v.owner(d)
			if o.decided[a] = c.Node; d.Routed {
				o.decided[a] = podroutes.ByRouters
			}
		}
	}
}

// current returns the owners now: this node if it holds the address, otherwise the decided node.
func (o *owners) current(self string, granted func(netip.Addr) bool) map[netip.Addr]string {
	all := make(map[netip.Addr]string, len(o.egress))
	for _, a := range o.egress {
		node := o.decided[a]
		switch {
		case node == podroutes.ByRouters:
		case granted(a):
			node = self
		case node == self:
			node = "" // this node still asks the voters
		}
		all[a] = node
	}
	return all
}

// publishOwners tells the caller the owners if they have changed.
func (s *Speaker) publishOwners() {
	if s.cfg.Owners == nil || s.owners.decided == nil {
		return // the owners that the process before published stay until this one knows
	}
	all := s.owners.current(s.cfg.Node, s.member.Granted)
	if s.owners.published != nil && maps.Equal(all, s.owners.published) {
		return
	}
	s.owners.published = all
	s.cfg.Owners(all)
}
