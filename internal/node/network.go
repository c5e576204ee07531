package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/cni"
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
	// Plugin is the program to install as CNI plugin; default is cni.PluginName beside this
	// program.
	Plugin string

	MTU int // of the pods' links in bytes; 0 takes that of the link with the node's address

	// Masquerade gives pods the node's address where they leave the cluster.
	Masquerade bool
	// ClusterCIDRs are destinations that are never masqueraded, besides the
	// nodes' addresses and all nodes' podCIDRs.
	ClusterCIDRs []netip.Prefix
}

// A Peer is what the pod network has to know of a node.
type Peer struct {
	Name     string         // of the Node object
	Addrs    []netip.Addr   // InternalIPs, at most one a family is used
	PodCIDRs []netip.Prefix // where its pods' addresses come from
}

// A Network is this machine's part of the pod network. Its methods must not be
// called at the same time, and work in the network namespace of the caller's
// thread.
type Network struct {
	Config
	reported   map[string]bool // problems of peers that were logged
	installed  [2]fileState    // source and copy of the plugin when they were last equal
	masquerade *masquerade
	looked     bool // for obstacles, which were found
	obstacles  []string
}

// New returns a Network that has done nothing yet.
func New(config Config) *Network {
	config.CNIBinDir = cmp.Or(config.CNIBinDir, "/opt/cni/bin")
	config.CNIConfDir = cmp.Or(config.CNIConfDir, "/etc/cni/net.d")
	config.StateDir = cmp.Or(config.StateDir, cni.DefaultStateDir)
	return &Network{Config: config, reported: map[string]bool{}, masquerade: newMasquerade()}
}

// Sync makes the machine carry the pods of self and reach those of peers (self
// may be among them). It does as much as it can and returns what failed; then it
// should be called again. As long as self has no podCIDRs, or something that its
// own pods need fails, no CNI configuration is written.
func (n *Network) Sync(ctx context.Context, self Peer, peers []Peer) error {
	netlink, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer netlink.Close()
	table, err := readRoutes(netlink)
	if err != nil {
		return err
	}
	plan := makePlan(self, peers, table.onLink)
	needed := enableForwarding(plan.own, table)
	needed = errors.Join(needed, n.syncMasquerade(ctx, plan))
	needed = errors.Join(needed, n.installPlugin())
	mtu, err := n.mtu(netlink, self)
	needed = errors.Join(needed, err)
	refused, failed := syncRoutes(netlink, table.ours, plan.routes)
	n.report(slices.Concat(plan.problems, refused, n.findObstacles(ctx)))
	if needed != nil {
		return errors.Join(needed, failed)
	}
	return errors.Join(failed, n.syncConfig(self.Name, plan.own, mtu))
}

// Close frees the sockets that a Network keeps open between calls of Sync. What Sync made
// stays. A later Sync opens them again.
func (n *Network) Close() { n.masquerade.forget() }

// report logs every problem once, and again when it was away in between.
func (n *Network) report(problems []string) {
	for _, problem := range problems {
		if !n.reported[problem] {
			n.Log.Warn("pod network: " + problem)
		}
	}
	n.reported = make(map[string]bool, len(problems))
	for _, problem := range problems {
		n.reported[problem] = true
	}
}

// Cleanup removes everything that Sync has ever made on this machine. Forwarding
// stays on: others may need it by now. Running pods keep their links, but can be
// deleted only by a runtime that has the plugin: drain the node first.
func (n *Network) Cleanup(ctx context.Context) error {
	netlink, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer netlink.Close()
	n.installed = [2]fileState{}
	n.warnOfPods(netlink)
	// The configuration goes first, so that no pod is started any more.
	failed := errors.Join(n.removeConfig(), n.removePlugin())
	table, err := readRoutes(netlink)
	if err == nil {
		_, err = syncRoutes(netlink, table.ours, nil)
	}
	return errors.Join(failed, err, n.removeMasquerade(ctx))
}

func (n *Network) warnOfPods(netlink netlinksafe.Handle) {
	links, err := netlink.LinkList()
	if err != nil {
		return // only a warning is lost
	}
	pods := 0
	for _, link := range links {
		if cni.IsPodLink(link.Attrs().Name, link.Attrs().Alias) {
			pods++
		}
	}
	if pods > 0 {
		n.Log.Warn("pod network: pods are still running; they cannot be deleted without the CNI plugin [drain the node before --cleanup, or start the agent again]", "pods", pods)
	}
}

// mtu is the configured one, or that of the link which carries a node address.
func (n *Network) mtu(netlink netlinksafe.Handle, self Peer) (int, error) {
	if n.MTU != 0 {
		return n.MTU, nil
	}
	addrs, err := netlink.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return 0, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		addr, _ := netip.AddrFromSlice(a.IP)
		if !slices.Contains(self.Addrs, addr.Unmap()) {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return 0, fmt.Errorf("find the uplink: %w", err)
		}
		return link.Attrs().MTU, nil
	}
	return 0, nil // the plugin looks at the default route
}
