package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/service"
)

const reasonClaimed = "AddressClaimed"

// An allocation is the status that a Service gets, and the claims of nodes that were reported.
type allocation struct {
	status   balancerStatus
	reported map[nodeClaim]bool
}

// A nodeClaim is an address that a node claims as its own.
type nodeClaim struct {
	node string
	addr netip.Addr
}

// next returns the next allocation of a Service. Equal addresses keep their reported claims. g may be nil.
func (g *allocation) next(status balancerStatus) *allocation {
	n := &allocation{status, map[nodeClaim]bool{}}
	if g != nil && slices.Equal(g.status.Addrs, status.Addrs) {
		n.status.Ports, n.reported = g.status.Ports, g.reported
	}
	return n
}

// claimants maps each address to the node that claims it. If several nodes claim an address, the first name counts.
func claimants(s *kube.Store) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, n := range s.NodeFeed().All() {
		for _, a := range n.Addrs {
			if other, ok := all[a]; !ok || n.Name < other {
				all[a] = n.Name
			}
		}
	}
	return all
}

// publish queues the status of a Service. Agents refuse a load-balancer address that a node claims, and a kubelet may
// claim any address. A Service that had the address before the claim keeps it: its status then lists its ports, and
// agents serve the address at these ports (decision 14). Ports of the nodes' own programs are not listed. The ports
// stay listed after the claim has ended, so that a repeated claim interrupts nothing.
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

// checked returns the ports at which no program of a node listens.
func (a *Addresses) checked(ports []ipam.Port) (out []service.CheckedPort) {
	for _, p := range ports {
		if !ipam.Taken(a.programPorts, p.Port) {
			out = append(out, service.CheckedPort(p))
		}
	}
	return out
}

func (a *Addresses) reportClaim(name api.Name, c nodeClaim) {
	message := fmt.Sprintf("Node %s claims the address %v, which this Service had first. The Service keeps it, except for ports of the nodes' own programs [look at the Node's status.addresses: "+
		"its kubelet is wrong or hostile, or an IPAddressPool has nodes' addresses]", c.node, c.addr)
	a.log.Warn("a node claims a load-balancer address", "node", c.node, "service", name.String(), "address", c.addr.String())
	p := api.Problem{Reason: reasonClaimed, Message: message}
	a.events.Event(name, p)
	a.events.NodeEvent(c.node, p.Reason, fmt.Sprintf("status.addresses names %v, which Service %v had first: the Service keeps it [correct the kubelet's report, or take nodes' addresses out of IPAddressPools]", c.addr, name))
}
