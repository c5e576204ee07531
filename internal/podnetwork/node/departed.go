package node

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// keepDeparted is how long the routes to the pods of a node stay after its Node object is gone. A
// Node that is deleted by mistake, or to be registered anew, goes on to carry its pods; one that
// is really gone does not answer, with a route or without.
const keepDeparted = time.Minute

// departures remember the nodes whose objects are gone. They work on the clock that they are given.
type departures struct {
	last map[string]departed // by name
}

// A departed is a node as it was when its object last said all about it.
type departed struct {
	Peer
	at time.Time // when it did so no longer; zero: it does
}

// notice compares the nodes with those of the last call. It returns them, and those that have
// gone in the last minute, the first one first. A Node that is made again has at first no
// addresses, no podCIDRs, or no key: in that minute it has those that it had.
func (d *departures) notice(now time.Time, present []Peer) (all, gone []Peer) {
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

func (p departed) expired(now time.Time) bool { return !p.at.IsZero() && now.Sub(p.at) >= keepDeparted }

// since is p, departed now at the latest.
func (p departed) since(now time.Time) departed {
	if p.at.IsZero() {
		p.at = now
	}
	return p
}

// addDeparted plans routes to pods of nodes whose objects are gone, as far as no other node has
// their podCIDRs or their addresses now. Such a node refuses nobody anything, and what keeps it
// from having a route is no problem.
func (p *plan) addDeparted(decision *podCIDRs) {
	taken := map[netip.Addr]bool{}
	for _, peer := range decision.byAge() {
		for _, addr := range peer.Addrs {
			taken[addr] = true
		}
	}
	problems := len(p.problems)
	for _, node := range decision.departed {
		if slices.ContainsFunc(node.Addrs, func(a netip.Addr) bool { return taken[a] }) {
			continue
		}
		p.nodes = append(p.nodes, decision.seeingPods(node)...)
		p.tunnel.accept(node, decision)
		p.wg.accept(node, decision)
		for _, cidr := range node.PodCIDRs {
			if decision.accept(node, cidr) == "" {
				p.addPeer(node, cidr.Masked(), &decision.clusterState)
			}
		}
	}
	p.problems = p.problems[:problems]
}
