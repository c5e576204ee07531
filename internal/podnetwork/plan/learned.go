package plan

import (
	"net/netip"
	"slices"
)

// MakeLearned plans the routes of a machine that is no node, from announcements inside the cluster CIDRs.
func MakeLearned(received []Announcement, clusterCIDRs []netip.Prefix, networks []OnLink, own []netip.Addr) *Plan {
	p := &Plan{Routes: map[netip.Prefix]Route{}}
	by := NewAnnounced(received, networks, own)
	near := slices.Concat(own, by.Routers()) // routes to pods must not cover these addresses
	add := func(prefix netip.Prefix, hops []Hop) {
		if len(hops) > 0 && !slices.ContainsFunc(near, prefix.Contains) {
			p.Routes[prefix] = RouteBy(prefix, WayBGP, hops)
		}
	}
	for prefix, hops := range by {
		if slices.ContainsFunc(clusterCIDRs, func(c netip.Prefix) bool { return c.Bits() <= prefix.Bits() && c.Contains(prefix.Addr()) }) {
			add(prefix, hops)
		}
	}
	for _, c := range clusterCIDRs {
		hops, _ := by.To(c)
		add(c, hops)
	}
	if len(p.Routes) == 0 {
		p.problemf("", ReasonNotAnnounced, "no router announces a way to pods: those in %v are not reachable from here [sessions of routers, what they export to this machine]", clusterCIDRs)
	}
	return p
}
