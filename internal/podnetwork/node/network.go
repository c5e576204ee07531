package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/ipc/rib"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// Config is where a Network works.
type Config struct {
	Log *slog.Logger // required

	CNIBinDir  string // where runtimes look for plugins; default /opt/cni/bin
	CNIConfDir string // where runtimes look for configurations; default /etc/cni/net.d
	// StateDir is where the plugin's address store is, as the container runtime
	// sees it; default cni.DefaultStateDir. Every node has its own directory
	// below it, so that several nodes may share a file system.
	StateDir string
	// NodeName names that directory for Cleanup; empty: it stays.
	NodeName string
	// Plugin is the program to install as CNI plugin; default is cni.PluginName beside this
	// program.
	Plugin string

	// RecordHostPorts makes the plugin record pods' hostPorts, for a Service proxy of ours that
	// reads them. Without it the plugin portmap is chained, if the node has it.
	RecordHostPorts bool
	// PolicySocket is where the plugin asks the agent to isolate a pod; empty: it does not ask.
	PolicySocket string

	// Way is how packets reach the pods of other nodes; default WayRoutes.
	Way Way

	MTU int // of the pods' links in bytes; 0: that of the link with the node's address, less the tunnel's headers

	// Masquerade gives pods the node's address where they leave the cluster.
	Masquerade bool
	// NonMasqueradeCIDRs are what besides has to see the pods' own addresses. A family whose every address is
	// among them is not masqueraded.
	NonMasqueradeCIDRs []netip.Prefix
	// ClusterCIDRs are what the podCIDRs of other nodes have to be inside of; of a family
	// without one, other checks decide (podcidrs.go). They are never masqueraded, as the
	// nodes' addresses and all nodes' podCIDRs.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs returns the ranges of ClusterIPs, and APIServers addresses of the API
	// server: what podCIDRs of other nodes must not overlap. Nil: not known.
	ServiceCIDRs func() []netip.Prefix
	APIServers   func() []netip.Addr

	// PublishKey writes this node's public key of WireGuard's where peers read it, or removes it (none).
	// Nil: no key is published.
	PublishKey func(context.Context, Key) error

	// RIB is where the speaker of this node is told what to announce, and says what routers do; none: WayBGP
	// reaches neighbours only.
	RIB rib.Dir

	// Egress are pods that leave the cluster with a load balancer's address. Nil: there are none.
	Egress Egress

	// Event is told each problem of a node once while it lasts, with a reason in one word.
	// Nil: problems are only logged and counted.
	Event func(node, reason, message string)
	// Registry gets the metrics fairway_pod_network_problems and _routes. Nil: nothing is measured.
	Registry prometheus.Registerer
}

// A Peer is what the pod network has to know of a node.
type Peer struct {
	Name string // of the Node object
	// Created is when the Node object was made: the older node keeps a podCIDR that two have.
	Created  time.Time
	Addrs    []netip.Addr   // InternalIPs, at most one a family is used
	PodCIDRs []netip.Prefix // where its pods' addresses come from
	Key      Key            // its public one of WireGuard's, as its Node object has it; none: there is none
}

// A Network is this machine's part of the pod network. Its methods must not be
// called at the same time, and work in the network namespace of the caller's
// thread.
type Network struct {
	Config
	reported  map[problem]lastReport
	problems  *prometheus.GaugeVec
	routes    *prometheus.GaugeVec
	leaving   *prometheus.GaugeVec
	installed [2]fileState // source and copy of the plugin when they were last equal
	rules     *podRules
	egress    *egressKernel
	// egressRemoved: nothing of it is left.
	egressRemoved bool
	departures
	inherited
	private       Key // of the WireGuard device when it was last there
	received      []rib.Route
	announcements notice // routers announce something else
	now           func() time.Time
}

// New returns a Network that has done nothing yet.
func New(config Config) *Network {
	config.CNIBinDir = cmp.Or(config.CNIBinDir, "/opt/cni/bin")
	config.CNIConfDir = cmp.Or(config.CNIConfDir, "/etc/cni/net.d")
	config.StateDir = cmp.Or(config.StateDir, cni.DefaultStateDir)
	config.Way = cmp.Or(config.Way, WayRoutes)
	return &Network{Config: config, reported: map[problem]lastReport{}, problems: newProblems(config.Registry), routes: newRoutes(config.Registry), leaving: newEgress(config.Registry), rules: newPodRules(), egress: newEgressKernel(), announcements: make(notice, 1), now: time.Now}
}

// Sync makes the machine carry the pods of self and reach those of peers (self
// may be among them). Routes to a peer that is no longer among them stay for a
// minute, unless another has its podCIDR or address by then. It does as much as it can and returns what failed; then it
// should be called again. As long as self has no podCIDRs, or something that its
// own pods need fails, no CNI configuration is written.
func (n *Network) Sync(ctx context.Context, self Peer, peers []Peer) error {
	netlink, err := cni.OpenNetlink()
	if err != nil {
		return err
	}
	defer netlink.Close()
	links, err := n.readTunnels(ctx, netlink)
	if err != nil {
		return err
	}
	defer links.close()
	table, err := readRoutes(netlink, links.ways())
	if err != nil {
		return err
	}
	state := n.state(ctx, self, peers, table, links)
	plan := makePlan(state)
	n.planEgress(plan, state)
	unchecked := n.syncRules(ctx, plan, links)
	needed := errors.Join(enableForwarding(plan.podCIDRs, table), unchecked, n.installPlugin())
	mtu, err := n.podMTU(netlink, self, plan)
	brought := links.bring(ctx, plan, unchecked == nil)
	needed = errors.Join(needed, err)
	if plan.tunnel == nil || !plan.tunnel.forEgress {
		needed, brought = errors.Join(needed, brought), nil
	}
	n.private = links.wg.secret()
	plan.bind(links.indices())
	plan.egress.bind(WayVXLAN, links.vxlan.link)
	refused, failed := syncRoutes(netlink, table.routes, plan.routes)
	if failed == nil {
		failed = links.tidy(ctx, plan)
	}
	failed = errors.Join(failed, brought, n.restorePodRoutes(netlink, table, plan.podCIDRs), n.syncEgress(ctx, netlink, plan), syncNeighbours(wantedNeighbours(table, plan, self.Name, peers)))
	n.report(slices.Concat(plan.problems, refused))
	n.countRoutes(plan)
	n.countEgress(plan.egress)
	failed = errors.Join(failed, n.publish(ctx, self, plan, links.wg.public()))
	if needed != nil {
		return errors.Join(needed, failed)
	}
	return errors.Join(failed, n.announce(plan), n.syncConfig(self.Name, plan.podCIDRs, mtu))
}

// Close frees the sockets that a Network keeps open between calls of Sync. What Sync made
// stays. A later Sync opens them again.
func (n *Network) Close() {
	n.rules.forget()
	n.egress.forget()
}

// Cleanup removes everything that Sync has ever made on this machine. Forwarding
// stays on: others may need it by now. Running pods keep their links, but can be
// deleted only by a runtime that has the plugin: drain the node first.
func (n *Network) Cleanup(ctx context.Context) error {
	netlink, err := cni.OpenNetlink()
	if err != nil {
		return err
	}
	defer netlink.Close()
	n.installed = [2]fileState{}
	pods := n.warnOfPods(netlink)
	// The configuration goes first, so that no pod is started any more.
	failed := errors.Join(n.removeConfig(), n.removePlugin())
	table, err := readRoutes(netlink, nil)
	if err == nil {
		_, err = syncRoutes(netlink, table.routes, nil)
		err = errors.Join(err, syncNeighbours(nil), n.egress.remove(ctx, netlink), removeVXLAN(netlink, vxlanLink), removeWireGuard(netlink))
	}
	return errors.Join(failed, err, n.removeRules(ctx), n.removeStore(pods), n.RIB.Remove())
}

// removeStore removes the addresses that the plugin remembers, if no pod has one: an agent
// that is started here later must not give an address away twice.
func (n *Network) removeStore(pods int) error {
	if pods > 0 || n.NodeName == "" {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(n.StateDir, n.NodeName)); err != nil {
		return fmt.Errorf("remove the store of pods' addresses: %w", err)
	}
	_ = os.Remove(n.StateDir)               // not empty, if other nodes are on this machine
	_ = os.Remove(filepath.Dir(n.StateDir)) // or the mount point of a container
	return nil
}

// warnOfPods returns how many pods are here; if that cannot be read, more than none.
func (n *Network) warnOfPods(netlink netlinksafe.Handle) (pods int) {
	links, err := netlink.LinkList()
	if err != nil {
		return 1 // only a warning is lost
	}
	for _, link := range links {
		if cni.IsPodLink(link.Attrs().Name, link.Attrs().Alias) {
			pods++
		}
	}
	if pods > 0 {
		n.Log.Warn("pod network: pods are still running; they cannot be deleted without the CNI plugin [drain the node before --cleanup, or start the agent again]", "pods", pods)
	}
	return pods
}

// uplink is the MTU of the link which carries addr, one of the node's; 0: none does.
func uplink(netlink netlinksafe.Handle, is func(netip.Addr) bool) (int, error) {
	addrs, err := netlink.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return 0, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if addr, _ := netip.AddrFromSlice(a.IP); !is(addr.Unmap()) {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return 0, fmt.Errorf("find the uplink: %w", err)
		}
		if vnis[link.Attrs().Name] != 0 {
			continue // a tunnel of ours may have the address of the one that it goes through
		}
		return link.Attrs().MTU, nil
	}
	return 0, nil
}

// podMTU is the configured one, or that of the link which carries a node address, less what the
// tunnel adds. 0: the plugin looks at the default route.
func (n *Network) podMTU(netlink netlinksafe.Handle, self Peer, p *plan) (int, error) {
	switch {
	case n.MTU != 0:
		return n.MTU, nil
	case n.Way == WayWireGuard:
		return wgMTU(netlink, p.wg)
	case p.tunnel == nil || n.Way == WayRoutes || p.tunnel.forEgress:
		return uplink(netlink, func(a netip.Addr) bool { return slices.Contains(self.Addrs, a) })
	}
	mtu, err := uplink(netlink, func(a netip.Addr) bool { return a == p.tunnel.local })
	if err != nil || mtu == 0 {
		return 0, err
	}
	return mtu - overhead(p.tunnel.local), nil
}
