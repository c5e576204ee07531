package service

import (
	"net/netip"
	"slices"
	"time"
)

// Facts are the input of Compile that all Services share. Facts are immutable.
type Facts struct {
	Node
	// Dead are the nodes that their peers declare dead, sorted: see selection.
	Dead []string
	// Ejected are the TCP endpoints that failed connections of this node, sorted: see selection.
	Ejected []netip.AddrPort
}

// A Node describes the machine for which a Table is compiled.
type Node struct {
	Name string // the node's name, as in SliceEndpoint.Node
	Zone string // its label topology.kubernetes.io/zone; empty: none
	// Settings are the facts for the datapath. Settings.Detect says whether the node can tell pods from other clients;
	// this decides whether traffic from outside the cluster to ClusterIPs is masqueraded.
	Settings Settings
	// Primary4 and Primary6 are the node's own addresses. If one lies in a Service's Sources, the load balancer's
	// address also counts as a source, because packets of the node itself carry that address.
	Primary4, Primary6 netip.Addr
	// Balance is the default algorithm. Unsupported are the algorithms that the node's datapath does not have.
	Balance     Algorithm
	Unsupported Algorithms
	// Ejection is how long an endpoint that fails connections gets no new ones at first; 0 or EjectionOff: none is
	// ejected.
	Ejection time.Duration
	// NodeAddrs are the known addresses of nodes, this node included. APIServers are the known addresses of the API
	// server. No Service may have one of them for clients outside the cluster, nor an address in Settings.ServiceCIDRs.
	NodeAddrs, APIServers AddrSet
	// OwnAddrs are this node's addresses. A Service that is OnNodes is served only there.
	OwnAddrs          AddrSet
	RefuseExternalIPs bool // leave out ExternalIPs (KEP-5707: they can be abused)
	EgressOff         bool // no pod leaves the cluster with a Service's address
	Limits            Limits
	MasqueradeAll     bool // masquerade all clients of ClusterIPs; outside the cluster: all clients
	// Outside says that the machine is a load balancer in front of the cluster, not a node. It has only load balancers'
	// addresses that lie in Balances. Its Settings.ServiceCIDRs are those parts of Balances that are not on a local
	// interface.
	Outside  bool
	Balances []netip.Prefix
}

// A FactsChange is the difference between two Facts: it selects the entries that must be compiled again.
type FactsChange struct {
	all       bool             // a fact changed on which every entry depends
	addresses bool             // NodeAddrs, APIServers or OwnAddrs changed
	nodes     []string         // nodes that are Dead in only one of the Facts
	ejected   []netip.AddrPort // endpoints that are Ejected in only one of the Facts
}

// ChangeFrom returns the difference between old and f.
func (f Facts) ChangeFrom(old Facts) FactsChange {
	c := FactsChange{
		all:       !f.Node.compilesLike(old.Node),
		addresses: !slices.Equal(f.NodeAddrs, old.NodeAddrs) || !slices.Equal(f.APIServers, old.APIServers) || !slices.Equal(f.OwnAddrs, old.OwnAddrs),
		ejected:   difference(f.Ejected, old.Ejected),
	}
	for _, one := range [2][2][]string{{f.Dead, old.Dead}, {old.Dead, f.Dead}} {
		for _, name := range one[0] {
			if !slices.Contains(one[1], name) {
				c.nodes = append(c.nodes, name)
			}
		}
	}
	return c
}

// Any reports whether the change can affect an entry.
func (c FactsChange) Any() bool { return c.all || c.addresses || len(c.nodes)+len(c.ejected) > 0 }

// All reports whether the change affects every entry, also the entries of host ports.
func (c FactsChange) All() bool { return c.all }

// Affects reports whether an entry that was compiled with the old Facts must be compiled again.
func (c FactsChange) Affects(e *Entry) bool {
	return c.all || c.addresses && (e.external || e.loops != nil) || len(c.nodes) > 0 && e.hasEndpointsOn(c.nodes) ||
		len(c.ejected) > 0 && e.hasEndpointsAt(c.ejected)
}

// compilesLike reports whether n and o agree in the fields on which every Entry depends. Of the Settings only Detect and
// ServiceCIDRs count. NodeAddrs, APIServers and OwnAddrs do not count, because few entries depend on them.
func (n Node) compilesLike(o Node) bool {
	n4, n6 := n.Settings.Detect()
	o4, o6 := o.Settings.Detect()
	return n.Name == o.Name && n.Zone == o.Zone && n4 == o4 && n6 == o6 && samePrefixes(n.Settings.ServiceCIDRs, o.Settings.ServiceCIDRs) &&
		n.Primary4 == o.Primary4 && n.Primary6 == o.Primary6 && n.Balance == o.Balance && n.Ejection == o.Ejection && n.Unsupported == o.Unsupported &&
		n.RefuseExternalIPs == o.RefuseExternalIPs && n.EgressOff == o.EgressOff && n.Limits == o.Limits && n.MasqueradeAll == o.MasqueradeAll &&
		n.Outside == o.Outside && samePrefixes(n.Balances, o.Balances)
}

// hasEndpointsOn reports whether the Service has an endpoint on one of the nodes.
func (e *Entry) hasEndpointsOn(nodes []string) bool {
	return slices.ContainsFunc(e.slices, func(s *Slice) bool {
		return slices.ContainsFunc(s.Endpoints, func(p SliceEndpoint) bool { return slices.Contains(nodes, p.Node) })
	})
}
