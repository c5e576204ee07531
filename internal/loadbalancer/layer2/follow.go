package layer2

import (
	"context"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// A reading is what the API server says, and what follows from it.
type reading struct {
	nodes     []announce.Node
	decisions map[netip.Addr]*announce.Decision
}

// follow decides anew whenever the Source has something new, until ctx ends. It runs beside the loop: about 10,000
// addresses on 100 nodes a core decides for a quarter of a second, and a grant lasts half a second.
func (s *Speaker) follow(ctx context.Context) error {
	var decider announce.Decider
	for next := s.cfg.Source.Synced(); ; next = s.cfg.Source.Dirty() {
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
		in := s.cfg.Source.Input()
		select {
		case <-ctx.Done():
			return nil
		case s.readings <- reading{nodes: in.Nodes, decisions: decider.Decide(in)}:
		}
	}
}

// take makes a reading what the loop goes by. Of the first one all addresses may be announced already.
func (s *Speaker) take(ctx context.Context, r reading, first bool) {
	s.nodes = nil
	clear(s.net.peers)
	s.addrs = make(map[string][]netip.Addr, len(r.nodes))
	for _, n := range r.nodes {
		s.nodes = append(s.nodes, n.Name)
		s.addrs[n.Name] = n.Addrs
		if len(n.Addrs) == 0 {
			continue
		}
		s.net.peers[n.Name] = netip.AddrPortFrom(n.Addrs[0], s.cfg.Port)
	}
	s.member.SetPeers(s.nodes)
	s.member.SetVoters(s.cfg.Source.Voters())
	was := s.decisions
	s.decisions = r.decisions
	s.owners.asked = nil
	var guard []netip.Addr
	changed := false // of what the node announces: its interfaces, or the Services that have it
	ports := map[uint16]bool{}
	routed := false
	for a, d := range s.decisions {
		if d.Egress {
			s.owners.asked = append(s.owners.asked, a)
		}
		if d.Reason != announce.NoPool {
			guard = append(guard, a)
		}
		if _, ok := d.Candidate(s.cfg.Node); ok {
			for _, p := range d.Checks {
				ports[p] = true
			}
		}
		changed = changed || d != was[a] && s.member.Granted(a)
		routed = routed || len(d.Carriers) > 0
		if was[a] == nil && !first {
			s.unannounced[a] = time.Now()
		}
	}
	s.carriersChanged = true
	s.neighbours.asked.Store(routed)
	s.links.ask(s.cfg.Node, s.decisions)
	s.checks.set(s.net.peers[s.cfg.Node].Addr(), ports)
	if err := s.fence.Guard(ctx, guard); err != nil {
		s.mend(ctx, err)
	}
	if changed {
		s.announce()
	}
	s.soon = true
}
