package node

import (
	"net/netip"
	"slices"
	"time"
)

// keepDeparted is how long the routes to the pods of a node stay after its Node object is gone. A
// Node that is deleted by mistake, or to be registered anew, goes on to carry its pods; one that
// is really gone does not answer, with a route or without.
const keepDeparted = time.Minute

// departures remembers the nodes whose objects are gone. It works on the clock that it is given.
type departures struct {
	present []Peer // at the last call
	gone    []departed
}

type departed struct {
	Peer
	at time.Time
}

// notice compares the nodes with those of the last call, and returns those that have gone in the
// last minute, the first one first.
func (d *departures) notice(now time.Time, present []Peer) []Peer {
	there := make(map[string]bool, len(present))
	for _, p := range present {
		there[p.Name] = true
	}
	for _, p := range d.present {
		if !there[p.Name] {
			d.gone = append(d.gone, departed{p, now})
		}
	}
	d.gone = slices.DeleteFunc(d.gone, func(p departed) bool { return there[p.Name] || now.Sub(p.at) >= keepDeparted })
	d.present = slices.Clone(present)
	var peers []Peer
	for _, p := range d.gone {
		peers = append(peers, p.Peer)
	}
	return peers
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
		p.nodes = append(p.nodes, decision.neighbours(node)...)
		for _, cidr := range node.PodCIDRs {
			if decision.accept(node, cidr) == "" {
				p.addPeer(node, cidr.Masked(), decision.networks)
			}
		}
	}
	p.problems = p.problems[:problems]
}
