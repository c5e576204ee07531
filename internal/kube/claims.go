package kube

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

const reasonClaimed = "AddressClaimed"

// An allocation is what the allocator gave a Service, and which claims of nodes were reported.
type allocation struct {
	status   balancerStatus
	reported map[nodeClaim]bool
}

// A nodeClaim is an address that a node says is its own.
type nodeClaim struct {
	node string
	addr netip.Addr
}

// next is what a Service is given now; of its addresses it remembers what was reported. g may be nil.
func (g *allocation) next(status balancerStatus) *allocation {
	n := &allocation{status, map[nodeClaim]bool{}}
	if g != nil && slices.Equal(g.status.Addrs, status.Addrs) {
		n.status.Ports, n.reported = g.status.Ports, g.reported
	}
	return n
}

// claimants returns by address the node that says that it is its own; of several, the first by name.
func (s *Store) claimants() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, n := range s.nodes.All() {
		for _, a := range n.Addrs {
			if other, ok := all[a]; !ok || n.Name < other {
				all[a] = n.Name
			}
		}
	}
	return all
}

// publish has what a Service was given written to its status. Agents refuse a load balancer's address that a node
// says is its own, and a kubelet says what it likes. So a Service that had the address before keeps it: its
// status names its ports from then on, but those of nodes' own programs, and at these the agents serve it
// (decision 14). They stay named, so that a node that says this now and then interrupts nothing again.
func (a *Addresses) publish(name api.Name) {
	g := a.allocations[name]
	b, ok := a.balancers.Get(name)
	if g == nil || !ok {
		return
	}
	named := len(g.status.Ports) > 0 || len(b.status.Ports) > 0 && len(g.status.Addrs) > 0 && slices.Equal(b.status.Addrs, g.status.Addrs)
	for _, addr := range g.status.Addrs {
		node, ok := a.nodes[addr]
		if !ok {
			continue
		}
		named = true
		if c := (nodeClaim{node, addr}); !g.reported[c] {
			g.reported[c] = true
			a.reportClaim(name, c)
		}
	}
	g.status.Ports = nil
	if named {
		g.status.Ports = a.checked(b.Ports)
	}
	a.writer.Set(name, g.status)
}

// checked returns the ports at which no program of a node's own listens.
func (a *Addresses) checked(ports []ipam.Port) (out []service.CheckedPort) {
	for _, p := range ports {
		if !ipam.Taken(a.programPorts, p.Port) {
			out = append(out, service.CheckedPort(p))
		}
	}
	return out
}

func (a *Addresses) reportClaim(name api.Name, c nodeClaim) {
	message := fmt.Sprintf("Node %s says that %v is its own, which this Service had first: it keeps it, but for ports of nodes' own programs [look at the Node's status.addresses: "+
		"its kubelet is wrong or hostile, or an IPAddressPool has nodes' addresses]", c.node, c.addr)
	a.log.Warn("a node claims a load-balancer address", "node", c.node, "service", name.String(), "address", c.addr.String())
	p := api.Problem{Reason: reasonClaimed, Message: message}
	a.events.Event(name, p)
	a.events.NodeEvent(c.node, p.Reason, fmt.Sprintf("status.addresses names %v, which Service %v had first: the Service keeps it [correct what the kubelet reports, or take nodes' addresses out of IPAddressPools]", c.addr, name))
}
