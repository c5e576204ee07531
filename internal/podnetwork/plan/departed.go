package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// KeepDeparted is the time for which routes to a node's pods stay after its Node object is gone. A node still carries
// its pods if its object was deleted by mistake or is registered again. A node that is really gone answers neither with
// a route nor without.
const KeepDeparted = time.Minute

// Departures remember the nodes whose objects are gone. The caller gives the time.
type Departures struct {
	last map[string]departed // by name
}

// A departed is the last complete state of a node.
type departed struct {
	Peer
	at time.Time // since when the object is gone or incomplete; zero: it is complete
}

// Notice compares the nodes with the nodes of the last call. It returns the present nodes, and the nodes that have gone
// in the last minute, the first one first. A Node that is registered again at first lacks addresses, podCIDRs or a key.
// For a minute Notice adds its previous ones.
func (d *Departures) Notice(now time.Time, present []Peer) (all, gone []Peer) {
	if d.last == nil {
		d.last = map[string]departed{}
	}
	all = slices.Clone(present)
	there := make(map[string]bool, len(all))
	for i := range all {
		p := &all[i]
		there[p.Name] = true
		was, known := d.last[p.Name]
		whole := len(p.Addrs) > 0 && len(p.PodCIDRs) > 0 && (p.Key != Key{} || was.Key == Key{})
		if whole || !known || was.expired(now) {
			d.last[p.Name] = departed{Peer: *p}
			continue
		}
		if len(p.Addrs) == 0 {
			p.Addrs = was.Addrs
		}
		if len(p.PodCIDRs) == 0 {
			p.PodCIDRs = was.PodCIDRs
		}
		if p.Key == (Key{}) {
			p.Key = was.Key
		}
		d.last[p.Name] = was.since(now)
	}
	var left []departed
	for name, p := range d.last {
		switch {
		case there[name]:
		case p.expired(now):
			delete(d.last, name)
		default:
			d.last[name] = p.since(now)
			left = append(left, d.last[name])
		}
	}
	slices.SortFunc(left, func(a, b departed) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.Name, b.Name)) })
	for _, p := range left {
		gone = append(gone, p.Peer)
	}
	return all, gone
}

func (p departed) expired(now time.Time) bool { return !p.at.IsZero() && now.Sub(p.at) >= KeepDeparted }

// since returns p as departed since now, or since an earlier time that it has.
func (p departed) since(now time.Time) departed {
	if p.at.IsZero() {
		p.at = now
	}
	return p
}

// addDeparted plans routes to pods of nodes whose objects are gone, unless another node has their podCIDR or address
// now. A departed node keeps no podCIDR from another node, and is no problem if it gets no route.
func (p *Plan) addDeparted(decision *podCIDRs) {
	taken := map[netip.Addr]bool{}
	for _, peer := range decision.byAge() {
		for _, addr := range peer.Addrs {
			taken[addr] = true
		}
	}
	problems := len(p.Problems)
	for _, node := range decision.Departed {
		if slices.ContainsFunc(node.Addrs, func(a netip.Addr) bool { return taken[a] }) {
			continue
		}
		p.Nodes = append(p.Nodes, decision.seeingPods(node)...)
		p.Tunnel.accept(node, decision)
		p.WireGuard.accept(node, decision)
		for _, cidr := range node.PodCIDRs {
			if decision.accept(node, cidr) == "" {
				p.addPeer(node, cidr.Masked(), &decision.State)
			}
		}
	}
	p.Problems = p.Problems[:problems]
}
