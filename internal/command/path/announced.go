package path

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/path"
)

// balancersNamespace has the objects of metallb.io.
const balancersNamespace = "metallb-system"

// announcements reads who announces the addresses of load balancers. Nothing is known to a person who may not read that,
// or if another program, of which the API server knows nothing, announces them.
func announcements(ctx context.Context, connection kube.Connection) map[netip.Addr]path.Announcement {
	announced, err := loadbalancer.ConnectAnnounced(connection, balancersNamespace, "")
	if err != nil {
		return nil
	}
	o, err := announced.Report(ctx)
	if err != nil {
		return nil
	}
	return announcementsOf(o)
}

// announcementsOf keeps what speakers say. Without a speaker, an address that nobody reports is not known.
func announcementsOf(o announce.Overview) map[netip.Addr]path.Announcement {
	all := map[netip.Addr]path.Announcement{}
	for _, a := range o.Addresses {
		addr, err := netip.ParseAddr(a.Address)
		if err != nil || len(a.Announced) == 0 && len(o.Speakers) == 0 {
			continue
		}
		x := path.Announcement{Reason: a.Reason}
		outside := false
		for i, n := range a.Announced {
			outside = outside || n.Node == ""
			if !slices.Contains(x.Nodes, n.Node) {
				x.Nodes = append(x.Nodes, n.Node)
			}
			if i == 0 {
				x.How = strings.TrimSuffix(string(n.Protocol)+" by "+strings.Join(n.By, ", "), " by ")
			}
		}
		if !outside { // a balancer outside of the cluster calls any node
			all[addr] = x
		}
	}
	return all
}
