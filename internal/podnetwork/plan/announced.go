package plan

import (
	"net/netip"
	"slices"
)

// An Announcement is a route that a router announces by BGP.
type Announcement struct {
	Prefix  netip.Prefix
	NextHop netip.Addr
	Router  netip.Addr // the router that announces it
}

// Announced has the routers that announce each prefix. An announcement makes no route by itself: Make looks up accepted
// podCIDRs in it.
type Announced map[netip.Prefix][]Hop

// NewAnnounced keeps the announcements that this machine can use: next hops in its own networks, and none that is
// itself. If a router names a next hop elsewhere, as a route reflector does, the packets go to the router.
func NewAnnounced(all []Announcement, networks []OnLink, self []netip.Addr) Announced {
	a := Announced{}
	for _, r := range all {
		to := Hop{Via: r.NextHop}
		if to.Link = LinkTo(r.NextHop, networks); r.NextHop.IsLinkLocalUnicast() {
			to.Link = LinkTo(r.Router, networks)
		}
		if to.Link == 0 && r.Router.Is4() == r.Prefix.Addr().Is4() {
			to = Hop{r.Router, LinkTo(r.Router, networks)}
		}
		if to.Link == 0 || slices.Contains(self, to.Via) || !r.Prefix.IsValid() || to.Via.Is4() != r.Prefix.Addr().Is4() || slices.Contains(a[r.Prefix], to) {
			continue
		}
		a[r.Prefix] = append(a[r.Prefix], to)
	}
	for prefix, hops := range a {
		slices.SortFunc(hops, CompareHops)
		a[prefix] = hops[:min(len(hops), MaxRouters)]
	}
	return a
}

// To returns the routers for a podCIDR. It prefers the longest announced prefix that contains the podCIDR. itself says
// that routers announce exactly the podCIDR.
func (a Announced) To(cidr netip.Prefix) (hops []Hop, itself bool) {
	for bits := cidr.Bits(); bits >= 0 && len(a) > 0; bits-- {
		if hops = a[netip.PrefixFrom(cidr.Addr(), bits).Masked()]; len(hops) > 0 {
			return hops, bits == cidr.Bits()
		}
	}
	return nil, false
}

// Routers returns the addresses of all next hops.
func (a Announced) Routers() (all []netip.Addr) {
	for _, hops := range a {
		for _, h := range hops {
			if !slices.Contains(all, h.Via) {
				all = append(all, h.Via)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
