package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
)

// transition is how long a node that changes to another way goes on to send by the one before. By
// then all nodes take packets by the new one: they hear of a ConfigMap's change within two minutes.
// Others that changed later send by the former way until twice that time.
const transition = 3 * time.Minute

// inherited is what the kernel held when a Network began. A change of way starts from it.
type inherited struct {
	began time.Time // of the first Sync; zero: there was none
	// encrypted: only encrypted packets were taken, or there were no peers: there is nothing to change from.
	encrypted bool
	// announced: the routers had the node's podCIDRs.
	announced bool
}

// begin looks at the kernel once.
func (n *Network) begin(ctx context.Context, table *routingTable) {
	n.began = n.now()
	own, err := n.RIB.PodCIDRs()
	n.announced = err != nil || len(own) > 0
	n.encrypted = len(table.ways()) == 0
	for _, set := range []string{setEncrypted4, setEncrypted6} {
		had, err := n.rules.table.Prefixes(ctx, set)
		n.encrypted = n.encrypted || err == nil && len(had) > 0 // no such set: never encrypted
	}
}

// state is what the plan follows from.
func (n *Network) state(ctx context.Context, self Peer, peers []Peer, table *routingTable, links *tunnels) clusterState {
	if n.began.IsZero() {
		n.begin(ctx, table)
	}
	now := n.now()
	all, departed := n.notice(now, peers)
	c := clusterState{
		self: self, peers: all, departed: departed, networks: table.onLink, gateways: table.gateways,
		clusterCIDRs: n.ClusterCIDRs, way: n.Way, key: links.wg.public(),
	}
	c.allowedIPs = links.wg.stands()
	since := now.Sub(n.began)
	if since < transition {
		c.retained = table.ways()
	}
	c.egress = n.Egress != nil
	c.announced = n.readReceived(table.onLink, self.Addrs, since)
	// Others send by VXLAN for longer only if what they change to is WireGuard or BGP.
	c.receive = links.vxlan.link != 0 && (since < transition || (n.Way == WayWireGuard || n.Way == WayBGP) && since < 2*transition)
	c.decrypt = links.wg.link != 0 && since < 2*transition
	c.enforce = n.Way == WayWireGuard && (n.encrypted || since >= 2*transition)
	if n.APIServers != nil {
		c.apiServers = n.APIServers()
	}
	if n.ServiceCIDRs != nil {
		c.serviceCIDRs = n.ServiceCIDRs()
	}
	return c
}

// publish has the key in the Node object, or none there when WireGuard is not used any more.
func (n *Network) publish(ctx context.Context, self Peer, p *plan, public Key) error {
	if n.PublishKey == nil || p.wg != nil && n.Way != WayWireGuard || self.Key == public {
		return nil
	}
	if p.wg == nil {
		public = Key{}
	} else if public == (Key{}) {
		return nil // the device could not be made
	}
	if self.Key == public {
		return nil
	}
	if err := n.PublishKey(ctx, public); err != nil && public != (Key{}) {
		return fmt.Errorf("publish the WireGuard key: %w [deploy/components/wireguard has the right to]", err)
	} else if err != nil {
		n.Log.Debug("the annotation with the WireGuard key stays: nobody uses it", "err", err)
	}
	return nil
}

// tunnels are the links that make tunnels.
type tunnels struct {
	vxlan vxlanSync
	wg    wgSync
}

// readTunnels reads what is there.
func (n *Network) readTunnels(ctx context.Context, handle netlinksafe.Handle) (*tunnels, error) {
	t := &tunnels{vxlan: vxlanSync{handle: handle, name: vxlanLink}, wg: wgSync{handle: handle, private: n.private}}
	link, err := findVXLAN(handle, vxlanLink)
	if err != nil && (n.Way == WayVXLAN || n.Way == WayAuto) {
		return nil, fmt.Errorf("make the VXLAN device %s: %w", vxlanLink, err)
	}
	if link != nil {
		t.vxlan.link = link.Index
	}
	if err := t.wg.read(ctx); err != nil && n.Way == WayWireGuard {
		t.close()
		return nil, fmt.Errorf("make the WireGuard device %s: %w", wgLink, err)
	}
	return t, nil
}

func (t *tunnels) close() { t.wg.close() }

// ways are which way the links are of.
func (t *tunnels) ways() map[int]Way {
	all := map[int]Way{}
	for way, link := range t.indices() {
		if link != 0 {
			all[link] = way
		}
	}
	return all
}

// indices are the links; 0: there is none.
func (t *tunnels) indices() map[Way]int {
	return map[Way]int{WayVXLAN: t.vxlan.link, WayWireGuard: t.wg.link}
}

// bring makes what is missing. checked: the rules are there that say who may send through a tunnel; without them none is
// made.
func (t *tunnels) bring(ctx context.Context, p *plan, checked bool) (failed error) {
	if p.tunnel != nil && (checked || t.vxlan.link != 0) {
		failed = t.vxlan.bring(p.tunnel)
	}
	if p.wg != nil {
		failed = errors.Join(failed, t.wg.bring(ctx, p.wg))
	}
	return failed
}

// tidy removes what is too much.
func (t *tunnels) tidy(ctx context.Context, p *plan) error {
	return errors.Join(t.vxlan.tidy(p.tunnel), t.wg.tidy(ctx, p.wg))
}
