package node

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// byBGP reports whether routers carry pods' packets. They do for some minutes after a change to another way, because
// other nodes still send by them.
func (n *Network) byBGP(since time.Duration) bool {
	return n.Way == plan.WayBGP || n.announced && since < 2*transition
}

// readReceived reads the routers' announcements. If the read fails, the previous ones count.
func (n *Network) readReceived(networks []plan.OnLink, self []netip.Addr, since time.Duration) plan.Announced {
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
	return plan.NewAnnounced(announcements(all), networks, self)
}

// announce tells the speaker which podCIDRs to announce: this node's, or none.
func (n *Network) announce(p *plan.Plan) error {
	var own []netip.Prefix
	if n.byBGP(n.now().Sub(n.startedAt)) {
		own = p.PodCIDRs
	}
	if err := n.RIB.SetPodCIDRs(own); err != nil {
		return fmt.Errorf("have the podCIDRs announced: %w", err)
	}
	return nil
}

// announcements converts routes of the RIB.
func announcements(all []podroutes.Route) []plan.Announcement {
	out := make([]plan.Announcement, 0, len(all))
	for _, r := range all {
		out = append(out, plan.Announcement(r))
	}
	return out
}
