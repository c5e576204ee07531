package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// transition is the time in which a node that changes to another way still sends by the previous one. By then all nodes
// take packets by the new way, because they see a change of the ConfigMap within two minutes. Nodes that changed later
// send by the previous way for up to twice that time.
const transition = 3 * time.Minute

// inherited is the state of the kernel at the first Sync. A change of way starts from it.
type inherited struct {
	startedAt time.Time // time of the first Sync; zero: there was none
	// encrypted: the kernel took only encrypted packets, or there were no peers. So no peer uses another way.
	encrypted bool
	// announced: the speaker announced the node's podCIDRs.
	announced bool
}

// readInherited reads the inherited state once.
func (n *Network) readInherited(ctx context.Context, table *routingTable) {
	n.startedAt = n.now()
	own, err := n.RIB.PodCIDRs()
	n.announced = err != nil || len(own) > 0
	n.encrypted = len(table.ways()) == 0
	for _, set := range []string{setEncrypted4, setEncrypted6} {
		had, err := n.rules.table.Prefixes(ctx, set)
		n.encrypted = n.encrypted || err == nil && len(had) > 0 // without the set packets were never encrypted
	}
}

// state returns the input of the plan.
func (n *Network) state(ctx context.Context, self plan.Peer, peers []plan.Peer, table *routingTable, links *tunnels) plan.State {
	if n.startedAt.IsZero() {
		n.readInherited(ctx, table)
	}
	now := n.now()
	all, departed := n.Notice(now, peers)
	c := plan.State{
		Self: self, Peers: all, Departed: departed, Networks: table.onLink, Gateways: table.gateways,
		ClusterCIDRs: n.ClusterCIDRs, Masquerade: n.Masquerade, NonMasqueradeCIDRs: n.NonMasqueradeCIDRs,
		OwnPods: table.pods, Foreign: table.foreign, Way: n.Way, Key: links.wg.Public(),
	}
	c.AllowedIPs = links.wg.AllowedIPs()
	since := now.Sub(n.startedAt)
	if since < transition {
		c.Retained = table.ways()
	}
	c.Egress = n.Egress != nil
	c.Announced = n.readReceived(table.onLink, self.Addrs, since)
	// Others send by VXLAN for longer only if the new way is WireGuard or BGP.
	c.Receive = links.vxlan.Link != 0 && (since < transition || (n.Way == plan.WayWireGuard || n.Way == plan.WayBGP) && since < 2*transition)
	c.Decrypt = links.wg.Link != 0 && since < 2*transition
	c.Enforce = n.Way == plan.WayWireGuard && (n.encrypted || since >= 2*transition)
	if n.APIServers != nil {
		c.APIServers = n.APIServers()
	}
	if n.ServiceCIDRs != nil {
		c.ServiceCIDRs = n.ServiceCIDRs()
	}
	return c
}

// publish writes the key to the Node object, or removes it when WireGuard is not used any more.
func (n *Network) publish(ctx context.Context, self plan.Peer, p *plan.Plan, public plan.Key) error {
	if n.PublishKey == nil || p.WireGuard != nil && n.Way != plan.WayWireGuard || self.Key == public {
		return nil
	}
	if p.WireGuard == nil {
		public = plan.Key{}
	} else if public == (plan.Key{}) {
		return nil // the device could not be made
	}
	if self.Key == public {
		return nil
	}
	if err := n.PublishKey(ctx, public); err != nil && public != (plan.Key{}) {
		return fmt.Errorf("publish the WireGuard key: %w [deploy/components/wireguard has the right to]", err)
	} else if err != nil {
		n.Log.Debug("the annotation with the WireGuard key stays: nobody uses it", "err", err)
	}
	return nil
}

// tunnels are the devices of the tunnels between nodes.
type tunnels struct {
	vxlan tunnel.VXLAN
	wg    tunnel.WireGuard
}

// readTunnels reads the devices.
func (n *Network) readTunnels(ctx context.Context, handle netlinksafe.Handle) (*tunnels, error) {
	t := &tunnels{vxlan: tunnel.NewVXLAN(handle, tunnel.VXLANLink), wg: tunnel.NewWireGuard(handle, n.private)}
	link, err := tunnel.FindVXLAN(handle, tunnel.VXLANLink)
	if err != nil && (n.Way == plan.WayVXLAN || n.Way == plan.WayAuto) {
		return nil, fmt.Errorf("make the VXLAN device %s: %w", tunnel.VXLANLink, err)
	}
	if link != nil {
		t.vxlan.Link = link.Index
	}
	if err := t.wg.Read(ctx); err != nil && n.Way == plan.WayWireGuard {
		t.close()
		return nil, fmt.Errorf("make the WireGuard device %s: %w", tunnel.WireGuardLink, err)
	}
	return t, nil
}

func (t *tunnels) close() { t.wg.Close() }

// ways returns the way of each link.
func (t *tunnels) ways() map[int]plan.Way {
	all := map[int]plan.Way{}
	for way, link := range t.indices() {
		if link != 0 {
			all[link] = way
		}
	}
	return all
}

// indices returns the links. 0: the tunnel has no device.
func (t *tunnels) indices() map[plan.Way]int {
	return map[plan.Way]int{plan.WayVXLAN: t.vxlan.Link, plan.WayWireGuard: t.wg.Link}
}

// bring makes the missing devices and entries. checked says that the rules about senders through a tunnel are loaded.
// Without them bring makes no VXLAN device.
func (t *tunnels) bring(ctx context.Context, p *plan.Plan, checked bool) (failed error) {
	if p.Tunnel != nil && (checked || t.vxlan.Link != 0) {
		failed = t.vxlan.Bring(p.Tunnel)
	}
	if p.WireGuard != nil {
		failed = errors.Join(failed, t.wg.Bring(ctx, p.WireGuard))
	}
	return failed
}

// tidy removes stale entries and unwanted devices.
func (t *tunnels) tidy(ctx context.Context, p *plan.Plan) error {
	return errors.Join(t.vxlan.Tidy(p.Tunnel), t.wg.Tidy(ctx, p.WireGuard))
}
