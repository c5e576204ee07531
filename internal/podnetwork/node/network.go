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

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// Config has the settings of a Network.
type Config struct {
	Log *slog.Logger // required

	CNIBinDir  string // the runtimes' directory of plugins; default /opt/cni/bin
	CNIConfDir string // the runtimes' directory of configurations; default /etc/cni/net.d
	// StateDir is the directory of the plugin's address store, by its path for the container runtime; default
	// cni.DefaultStateDir. Each node has its own directory below it, so that several nodes may share a file system.
	StateDir string
	// NodeName is the name of that directory for Cleanup. Empty: Cleanup keeps the store.
	NodeName string
	// Plugin is the program to install as CNI plugin; default cni.PluginName next to this program.
	Plugin string

	// RecordHostPorts makes the plugin record pods' hostPorts for Fairway's Service proxy. Without it the plugin
	// portmap is chained if the node has it.
	RecordHostPorts bool
	// PolicySocket is the socket at which the plugin asks the agent to isolate a pod. Empty: it does not ask.
	PolicySocket string

	// Way is the way to the pods of other nodes; default WayRoutes.
	Way plan.Way

	MTU int // of the pods' links in bytes; 0: the MTU of the link with the node's address, minus the tunnel's headers

	// Masquerade gives pods the node's address outside of the cluster.
	Masquerade bool
	// NonMasqueradeCIDRs are further destinations that see the pods' own addresses. If they include all addresses of a
	// family, that family is not masqueraded.
	NonMasqueradeCIDRs []netip.Prefix
	// ClusterCIDRs must contain the podCIDRs of other nodes. For a family without a ClusterCIDR other checks decide
	// (package plan). ClusterCIDRs, nodes' addresses and podCIDRs are never masqueraded.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs returns the ranges of ClusterIPs, and APIServers the addresses of the API server. podCIDRs of other
	// nodes must not overlap them. Nil: not known.
	ServiceCIDRs func() []netip.Prefix
	APIServers   func() []netip.Addr

	// PublishKey writes this node's public WireGuard key to its Node object for the peers. The zero Key removes it.
	// Nil: no key is published.
	PublishKey func(context.Context, plan.Key) error

	// Ready is called after each Sync that leaves a node whose runtime can start pods. Nil: nobody is told.
	Ready func(context.Context) error

	// RIB is the exchange with this node's speaker: podCIDRs to announce, and routers' announcements. Without it WayBGP
	// reaches only neighbours.
	RIB podroutes.Dir

	// Egress tells which pods leave the cluster with a load balancer's address. Nil: no pod does.
	Egress Egress

	// EmptyAfter is how long the API server must lack most pods with an egress address before the first plan drops their
	// rules. 0: it is believed at once.
	EmptyAfter time.Duration

	// TablesChanged receives when another program may have changed the kernel's tables. Nil: only a timer finds changes.
	TablesChanged <-chan struct{}
	// Fragments is how many IP fragments a second each pod may send. The node puts them together in memory that all
	// pods share. 0: there is no limit.
	Fragments int
	// OverShare gets a text about the pods that send more than Fragments, after each Sync. Empty: there are none. It may
	// be nil.
	OverShare func(message string)

	// Event gets each problem of a node once while the problem lasts. The reason is one word. Nil: problems are only
	// logged and counted.
	Event func(node, reason, message string)
	// Now gets the present problems in one text after each Sync; empty: there are none. It must not wait. Nil: nobody
	// asks.
	Now func(string)
	// Registry gets the metrics fairway_pod_network_problems, _routes and _egress_pods. Nil: nothing is measured.
	Registry prometheus.Registerer
}

// A Network is this machine's part of the pod network. Only one goroutine may call its methods. They work in the
// network namespace of the caller's thread.
type Network struct {
	Config
	reported  map[plan.Problem]lastReport
	problems  *prometheus.GaugeVec
	routes    *prometheus.GaugeVec
	leaving   *prometheus.GaugeVec
	installed [2]fileState // source and copy of the plugin when their contents were last equal
	rules     *podRules
	egress    *egressKernel
	brake     api.Brake // of the first plan with egress addresses
	// egressRemoved: the kernel has nothing left of egress addresses.
	egressRemoved bool
	plan.Departures
	inherited
	private       plan.Key // the last private key of the WireGuard device
	received      []podroutes.Route
	announcements notice // receives when the routers' announcements change
	last          *plan.Plan
	now           func() time.Time
}

// New returns a Network. It does not touch the kernel.
func New(config Config) *Network {
	config.CNIBinDir = cmp.Or(config.CNIBinDir, "/opt/cni/bin")
	config.CNIConfDir = cmp.Or(config.CNIConfDir, DefaultConfDir)
	config.StateDir = cmp.Or(config.StateDir, cni.DefaultStateDir)
	config.Way = cmp.Or(config.Way, plan.WayRoutes)
	return &Network{Config: config, reported: map[plan.Problem]lastReport{}, problems: newProblems(config.Registry), routes: newRoutes(config.Registry), leaving: newEgress(config.Registry), rules: newPodRules(), egress: newEgressKernel(), brake: api.Brake{Bound: config.EmptyAfter}, announcements: make(notice, 1), now: time.Now}
}

// Sync makes the machine carry the pods of self and reach the pods of peers, which may include self. Routes to a peer
// that is gone stay for a minute, unless another peer has its podCIDR or address by then. Sync does as much as it can
// and returns the errors; then call it again. It writes the CNI configuration only if self has podCIDRs and nothing
// failed that its own pods need.
func (n *Network) Sync(ctx context.Context, self plan.Peer, peers []plan.Peer) error {
	handle, err := cni.OpenNetlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	links, err := n.readTunnels(ctx, handle)
	if err != nil {
		return err
	}
	defer links.close()
	table, err := readRoutes(handle, links.ways())
	if err != nil {
		return err
	}
	state := n.state(ctx, self, peers, table, links)
	p := plan.Make(state)
	if err := n.planEgress(ctx, p, state); err != nil {
		return err
	}
	n.last = p
	unchecked := n.syncRules(ctx, p, links)
	needed := errors.Join(enableForwarding(p.PodCIDRs, table), unchecked, n.installPlugin())
	mtu, err := n.podMTU(handle, self, p)
	brought := links.bring(ctx, p, unchecked == nil)
	needed = errors.Join(needed, err)
	if p.Tunnel == nil || !p.Tunnel.ForEgress {
		needed, brought = errors.Join(needed, brought), nil
	}
	n.private = links.wg.Secret()
	p.Bind(links.indices())
	p.Egress.Bind(plan.WayVXLAN, links.vxlan.Link)
	refused, failed := syncRoutes(handle, table.routes, p.Routes)
	if failed == nil {
		failed = links.tidy(ctx, p)
	}
	failed = errors.Join(failed, brought, n.roomForFragments(), n.restorePodRoutes(handle, table, p.PodCIDRs), n.syncEgress(ctx, handle, p), syncNeighbours(wantedNeighbours(table, p, self.Name, peers)))
	n.report(slices.Concat(p.Problems, refused, n.overShare(ctx, p), n.configOrder(self.Name)))
	n.countRoutes(p)
	n.countEgress(p.Egress)
	failed = errors.Join(failed, n.publish(ctx, self, p, links.wg.Public()))
	if needed != nil {
		return errors.Join(needed, failed)
	}
	return errors.Join(failed, n.announce(p), n.configure(ctx, self.Name, p.PodCIDRs, mtu))
}

// Plan returns the plan of the last Sync, with the links of its tunnels. Nil: Sync was not called.
func (n *Network) Plan() *plan.Plan { return n.last }

// Close frees the sockets that a Network keeps open between calls of Sync. The kernel's state stays. A later Sync opens
// them again.
func (n *Network) Close() {
	n.rules.forget()
	n.egress.forget()
}

// Cleanup removes everything that Sync has made on this machine, except that forwarding stays on, because others may
// need it. Running pods keep their links. Only a runtime with the plugin can delete them, so drain the node first.
func (n *Network) Cleanup(ctx context.Context) error {
	handle, err := cni.OpenNetlink()
	if err != nil {
		return err
	}
	defer handle.Close()
	n.installed = [2]fileState{}
	pods := n.warnOfPods(handle)
	// The configuration goes first, so that no new pod starts.
	failed := errors.Join(n.removeConfig(), n.removePlugin())
	table, err := readRoutes(handle, nil)
	if err == nil {
		_, err = syncRoutes(handle, table.routes, nil)
		err = errors.Join(err, syncNeighbours(nil), n.egress.remove(ctx, handle), tunnel.RemoveVXLAN(handle, tunnel.VXLANLink), tunnel.RemoveWireGuard(handle))
	}
	return errors.Join(failed, err, n.removeRules(ctx), restoreFragments(), n.removeStore(pods), n.RIB.Remove())
}

// removeStore removes the plugin's store of addresses if no pod has an address. With pods it stays, because a later
// agent must not give an address away twice.
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

// warnOfPods returns the number of pods on the node. If it cannot be read, it returns 1.
func (n *Network) warnOfPods(handle netlinksafe.Handle) (pods int) {
	links, err := handle.LinkList()
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

// podMTU returns the configured MTU, or the MTU of the link with the node's address, minus the tunnel's headers. 0: the
// plugin takes the MTU of the default route's link.
func (n *Network) podMTU(handle netlinksafe.Handle, self plan.Peer, p *plan.Plan) (int, error) {
	switch {
	case n.MTU != 0:
		return n.MTU, nil
	case n.Way == plan.WayWireGuard:
		return tunnel.WireGuardMTU(handle, p.WireGuard)
	case p.Tunnel == nil || n.Way == plan.WayRoutes || p.Tunnel.ForEgress:
		return tunnel.Uplink(handle, func(a netip.Addr) bool { return slices.Contains(self.Addrs, a) })
	}
	mtu, err := tunnel.Uplink(handle, func(a netip.Addr) bool { return a == p.Tunnel.Local })
	if err != nil || mtu == 0 {
		return 0, err
	}
	return mtu - tunnel.Overhead(p.Tunnel.Local), nil
}
