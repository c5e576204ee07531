package layer2

import (
	"context"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// A reading is a state of the API server's objects, and the decisions that follow from it.
type reading struct {
	nodes     []announce.Node
	routers   []netip.Addr // of BGPPeers
	decisions map[netip.Addr]*announce.Decision
}

// follow decides again when the Source has changes, until ctx ends. It is not in the loop, because 10,000 addresses on 100
// nodes take a quarter of a second, and a grant lasts half a second. It rests after each decision, because each change of
// an object starts a decision on every node. The death of a node is no such change: the loop hears it from heartbeats.
func (s *Speaker) follow(ctx context.Context) error {
	var decider announce.Decider
	for next := s.cfg.Source.Synced(); ; next = s.cfg.Source.Dirty() {
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
		start := time.Now()
		in := s.cfg.Source.Input()
		r := reading{nodes: in.Nodes, routers: in.Routers, decisions: decider.Decide(in)}
		took := time.Since(start)
		select {
		case <-ctx.Done():
			return nil
		case s.readings <- r:
		}
		fair.Rest(ctx, took, nil)
	}
}

// take makes a reading the state of the loop. Addresses of the first reading are not new to the cluster, because other
// nodes may announce them already.
func (s *Speaker) take(ctx context.Context, r reading, first bool) {
	s.takeNodes(r.nodes)
	s.forwarding.neighbours.routers = r.routers
	last := s.decisions
	s.decisions = r.decisions
	s.owners.egress = nil
	var guard []netip.Addr
	changed := false // an address that this node announces has other interfaces or Services
	ports := map[uint16]bool{}
	routed := false
	for a, d := range s.decisions {
		if d.Egress {
			s.owners.egress = append(s.owners.egress, a)
		}
		if d.Reason != announce.NoPool {
			guard = append(guard, a)
		}
		if _, ok := d.Candidate(s.cfg.Node); ok {
			for _, p := range d.Checks {
				ports[p] = true
			}
		}
		changed = changed || d != last[a] && s.member.Granted(a)
		routed = routed || len(d.Carriers) > 0
		if last[a] == nil && !first {
			s.probes.appeared[a] = time.Now()
		}
	}
	s.probes.forget(s.decisions)
	s.forwarding.carriersChanged = true
	s.forwarding.neighbours.wanted.Store(routed)
	s.links.setWanted(s.cfg.Node, s.decisions)
	s.health.Set(s.net.peers[s.cfg.Node].Addr(), ports)
	if err := s.fence.Guard(ctx, guard); err != nil {
		s.reloadFence(ctx, err)
	}
	if changed {
		s.announce()
	}
	s.beatSoon = true
}

// takeNodes makes the nodes of a reading the members of the election.
func (s *Speaker) takeNodes(nodes []announce.Node) {
	s.nodes = nil
	clear(s.net.peers)
	s.addrs = make(map[string][]netip.Addr, len(nodes))
	for _, n := range nodes {
		s.nodes = append(s.nodes, n.Name)
		s.addrs[n.Name] = n.Addrs
		if len(n.Addrs) > 0 {
			s.net.peers[n.Name] = netip.AddrPortFrom(n.Addrs[0], s.cfg.Port)
		}
	}
	s.member.SetPeers(s.nodes)
	s.member.SetVoters(s.cfg.Source.Voters())
}
