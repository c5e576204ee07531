package service

import "net/netip"

// externalAddresses sorts the addresses for clients outside the cluster by family. An
// address that is there twice counts once, as a load balancer's if it is one, because only
// those are subject to Sources. What a node refuses is left out.
func (c *compilation) externalAddresses() {
	c.balancers, c.externals = map[bool][]netip.Addr{}, map[bool][]netip.Addr{}
	seen := map[netip.Addr]bool{}
	for _, a := range c.families() {
		seen[a] = true // the ClusterIP has its own Frontend
	}
	into := func(list map[bool][]netip.Addr, addrs []netip.Addr, what string) {
		var refused [refusalCount][]netip.Addr
		for _, a := range addrs {
			if a = a.Unmap(); !usable(a) || seen[a] {
				continue
			}
			seen[a] = true
			if why := c.node.refuses(a); why != notRefused {
				refused[why] = append(refused[why], a)
				continue
			}
			list[a.Is4()] = append(list[a.Is4()], a)
		}
		for why, addrs := range refused {
			if len(addrs) > 0 {
				c.problem("AddressRefused", "%s left out: %s: %s", what, some(addrs), refusalTexts[why])
			}
		}
	}
	into(c.balancers, c.svc.BalancerIPs, "load balancer addresses")
	if len(c.svc.ExternalIPs) > 0 && c.node.RefuseExternalIPs {
		c.problem("ExternalIPsRefused", "spec.externalIPs are refused on this cluster; they are left out [use type LoadBalancer or NodePort]")
		return
	}
	into(c.externals, c.svc.ExternalIPs, "externalIPs")
}

// A refusal says why no Service may have an address for clients outside the cluster: the
// Service would take traffic that is not its own.
type refusal uint8

const (
	notRefused refusal = iota
	inServiceCIDR
	ofAPIServer
	ofNode
	refusalCount
)

var refusalTexts = [refusalCount]string{
	inServiceCIDR: "addresses in a ServiceCIDR are for ClusterIPs only [choose addresses outside of it]",
	ofAPIServer:   "the API server is reached there [choose other addresses]",
	ofNode:        "they are a node's own [choose addresses that no node has, or type NodePort]",
}

// refuses returns why no Service may have a for clients outside the cluster.
func (n *Node) refuses(a netip.Addr) refusal {
	switch {
	case anyContains(n.Settings.ServiceCIDRs, a):
		return inServiceCIDR
	case n.APIServers.Has(a):
		return ofAPIServer
	case n.NodeAddrs.Has(a):
		return ofNode
	}
	return notRefused
}
