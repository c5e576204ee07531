package service

import (
	"cmp"
	"net/netip"
	"slices"
)

// externalAddresses collects the addresses for clients outside the cluster. An address that the Service names twice
// counts once, as a load balancer's address if it is one, because only these addresses respect Sources. Addresses that
// the node refuses are left out, and other nodes' own addresses.
func (c *compilation) externalAddresses() {
	c.balancers, c.externals, c.onHosts = map[bool][]netip.Addr{}, map[bool][]netip.Addr{}, map[netip.Addr]bool{}
	seen := map[netip.Addr]bool{}
	for _, a := range c.families() {
		seen[a] = true // the ClusterIP has its own Frontend
	}
	count := 0
	into := func(list map[bool][]netip.Addr, addrs []netip.Addr, what string, hosts bool) {
		var refused [refusalCount][]netip.Addr
		for _, a := range addrs {
			if a = a.Unmap(); !usable(a) || seen[a] {
				continue
			}
			seen[a] = true
			if c.svc.OnNodes && !c.facts.Outside && !c.facts.OwnAddrs.Has(a) {
				continue // the node that has the address serves it
			}
			why := c.facts.refuses(a)
			if why == ofNode && hosts {
				c.onHosts[a], why = true, notRefused
			}
			if why != notRefused {
				refused[why] = append(refused[why], a)
				continue
			}
			if count++; exceeds(count, c.facts.Limits.ExternalAddresses) {
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
	into(c.balancers, c.svc.BalancerIPs, "load balancer addresses", len(c.svc.CheckedPorts) > 0)
	switch {
	case c.facts.Outside || len(c.svc.ExternalIPs) == 0:
	case c.facts.RefuseExternalIPs:
		c.problem("ExternalIPsRefused", "spec.externalIPs are refused on this cluster; they are left out [use type LoadBalancer or NodePort]")
	default:
		into(c.externals, c.svc.ExternalIPs, "externalIPs", false)
	}
	if limit := c.facts.Limits.ExternalAddresses; exceeds(count, limit) {
		c.problem("TooManyExternalAddresses", "%d addresses for clients outside the cluster are more than %d; the others are left out %s", count, limit, limitAdvice)
	}
}

// checkedPort reports whether an address of a load balancer may have a port. A node's own address may have only checked
// ports.
func (c *compilation) checkedPort(a netip.Addr, p Port) bool {
	return !c.onHosts[a] || slices.Contains(c.svc.CheckedPorts, CheckedPort{p.Proto, p.Port})
}

// sourceRanges decides which clients may use each address of the load balancer, for a number of ports. The rules are
// kube-proxy's: ranges of the other family do not count. If no range is left, or one has all addresses, all clients may
// use the address.
func (c *compilation) sourceRanges(ports int) {
	c.sources = map[netip.Addr][]netip.Prefix{}
	for is4, vips := range c.balancers {
		limit := c.facts.Limits.SourceRanges
		if total := len(c.svc.Sources) * len(vips) * ports; exceeds(total, limit) {
			c.problem("TooManySourceRanges", "%d loadBalancerSourceRanges for each of %d load balancer frontends are more than %d in all; no client may use them %s",
				len(c.svc.Sources), len(vips)*ports, limit, limitAdvice)
			for _, vip := range vips {
				c.sources[vip] = NoClients(is4)
			}
			continue
		}
		primary := c.facts.Primary6
		if is4 {
			primary = c.facts.Primary4
		}
		ranges := c.rangesOf(is4)
		own := anyContains(ranges, primary)
		for _, vip := range vips {
			c.sources[vip] = ranges
			if own {
				c.sources[vip] = Widest(append(slices.Clip(ranges), netip.PrefixFrom(vip, vip.BitLen())))
			}
		}
	}
}

// rangesOf returns the Service's source ranges of a family; none if all clients are allowed.
func (c *compilation) rangesOf(is4 bool) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range c.svc.Sources {
		switch {
		case p.Addr().Is4() != is4:
			continue
		case p.Bits() == 0:
			return nil
		}
		all = append(all, p.Masked())
	}
	return Widest(all)
}

// Widest sorts ranges and removes ranges that lie in other ranges.
func Widest(all []netip.Prefix) []netip.Prefix {
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Clip(slices.CompactFunc(all, func(wide, p netip.Prefix) bool { return wide.Overlaps(p) }))
}

// A refusal is the reason why no Service may have an address for clients outside the cluster: the Service would take
// another's traffic.
type refusal uint8

const (
	notRefused refusal = iota
	inServiceCIDR
	ofAPIServer
	ofNode
	ofOther
	refusalCount
)

var refusalTexts = [refusalCount]string{
	inServiceCIDR: "addresses in a ServiceCIDR are for ClusterIPs only [choose addresses outside of it]",
	ofAPIServer:   "the API server is reached there [choose other addresses]",
	ofNode:        "they are a node's own [choose addresses that no node has, or type NodePort]",
	ofOther:       "this balancer does not have them [add their range to its addresses, if it should]",
}

// refuses returns the reason why no Service may have a for clients outside the cluster.
func (n *Node) refuses(a netip.Addr) refusal {
	switch {
	case !n.Outside && anyContains(n.Settings.ServiceCIDRs, a):
		return inServiceCIDR
	case n.APIServers.Has(a):
		return ofAPIServer
	case n.NodeAddrs.Has(a):
		return ofNode
	case n.Outside && !anyContains(n.Balances, a):
		return ofOther
	}
	return notRefused
}
