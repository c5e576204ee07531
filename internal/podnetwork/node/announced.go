package node

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/rib"
)

// announced are the prefixes that routers announce, with the routers that lead there. Nothing of it becomes
// a route by itself: it is asked for the podCIDRs that are accepted.
type announced map[netip.Prefix][]hop

// newAnnounced keeps what this machine can use: routers in its own networks, and none that is itself. A router that
// names a next hop elsewhere, as a route reflector does, is sent the packets itself.
func newAnnounced(all []rib.Route, networks []onLink, self []netip.Addr) announced {
	a := announced{}
	for _, r := range all {
		to := hop{via: r.NextHop}
		if to.link = linkTo(r.NextHop, networks); r.NextHop.IsLinkLocalUnicast() {
			to.link = linkTo(r.Router, networks)
		}
		if to.link == 0 && r.Router.Is4() == r.Prefix.Addr().Is4() {
			to = hop{r.Router, linkTo(r.Router, networks)}
		}
		if to.link == 0 || slices.Contains(self, to.via) || !r.Prefix.IsValid() || to.via.Is4() != r.Prefix.Addr().Is4() || slices.Contains(a[r.Prefix], to) {
			continue
		}
		a[r.Prefix] = append(a[r.Prefix], to)
	}
	for prefix, hops := range a {
		slices.SortFunc(hops, compareHops)
		a[prefix] = hops[:min(len(hops), maxRouters)]
	}
	return a
}

// to returns what leads to a podCIDR: routers that announce it itself, or what contains it, the
// longest prefix first.
func (a announced) to(cidr netip.Prefix) (hops []hop, itself bool) {
	for bits := cidr.Bits(); bits >= 0 && len(a) > 0; bits-- {
		if hops = a[netip.PrefixFrom(cidr.Addr(), bits).Masked()]; len(hops) > 0 {
			return hops, bits == cidr.Bits()
		}
	}
	return nil, false
}

// routers are the addresses that packets are sent to.
func (a announced) routers() (all []netip.Addr) {
	for _, hops := range a {
		for _, h := range hops {
			if !slices.Contains(all, h.via) {
				all = append(all, h.via)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// byBGP reports whether routers are asked to carry pods' packets: also for a while after a change to
// another way, in which other nodes still send so.
func (n *Network) byBGP(since time.Duration) bool {
	return n.Way == WayBGP || n.announced && since < 2*transition
}

// readReceived reads what routers announce. What cannot be read is as it was.
func (n *Network) readReceived(networks []onLink, self []netip.Addr, since time.Duration) announced {
	if !n.byBGP(since) {
		n.received = nil
		return nil
	}
	all, err := n.RIB.Received()
	if err != nil {
		n.Log.Error("pod network: cannot read the routes by BGP; they stay as they are", "err", err)
		all = n.received
	}
	n.received = all
	return newAnnounced(all, networks, self)
}

// announce has the speaker announce this node's podCIDRs, or not any more.
func (n *Network) announce(p *plan) error {
	var own []netip.Prefix
	if n.byBGP(n.now().Sub(n.began)) {
		own = p.podCIDRs
	}
	if err := n.RIB.SetPodCIDRs(own); err != nil {
		return fmt.Errorf("have the podCIDRs announced: %w", err)
	}
	return nil
}
