package layer2

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
)

// errorTargets returns this node's place in the binary tree of all nodes that ICMP errors visit. nodes are sorted by name.
// A node copies errors only to nodes with a later name, so none goes round, even while nodes disagree about the nodes.
func (f *forwarding) errorTargets(self string, nodes []string, addrOf func(node string) netip.Addr) (t fence.ErrorTargets) {
	var tree []netip.Addr // as a heap: the children of i are 2i+1 and 2i+2
	own := -1
	for _, node := range nodes {
		if node == self {
			own, tree = len(tree), append(tree, netip.Addr{})
		} else if to := addrOf(node); f.speaking[node] && !f.gone[node] && to.IsValid() {
			tree = append(tree, to)
		}
	}
	at := func(i int) netip.Addr {
		if i < len(tree) {
			return tree[i]
		}
		return netip.Addr{}
	}
	t.Root = at(0)
	if own >= 0 {
		t.Left, t.Right = at(2*own+1), at(2*own+2)
	}
	return t
}

// errorTargets returns this node's place in the trees of ICMP errors, for IPv4 and IPv6. The nodes of a tree are on one
// network.
func (s *Speaker) errorTargets() (all [2]fence.ErrorTargets) {
	networks, err := netns.Addrs()
	if err != nil {
		s.cfg.Log.Warn("cannot read the node's addresses: ICMP errors are not passed on to nodes that may have the connection", "err", err)
		return all
	}
	for i := range all {
		all[i] = s.forwarding.errorTargets(s.cfg.Node, s.nodes, func(node string) netip.Addr {
			for _, a := range s.addrs[node] {
				if a.Is4() == (i == 0) && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
					return a
				}
			}
			return netip.Addr{}
		})
	}
	return all
}
