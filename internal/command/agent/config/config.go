// Package config knows every option of `fairway agent`: kube-proxy's flags, a
// KubeProxyConfiguration file, and a few flags of our own.
//
//	flags ───────────┐
//	                 ├─ Load ─→ Config ─ Settings(zone, addresses, podCIDRs) ─→ service
//	--config FILE ───┘            └─ Warnings: what was understood but not done
//
// It hides two spellings of every option, kube-proxy's defaults and its rules about
// which of the two spellings wins. It promises that a Config is complete and valid:
// its readers check nothing. A mistake costs one line that names the flag or the
// field; what we understand but cannot do is a warning; nothing is ignored silently.
//
// As in kube-proxy, with --config the file alone counts, except for --master,
// --hostname-override, --cleanup, -v and the flags that the file has no field for
// (--log-level, --log-format, --empty-after, --service-limits, --pod-network, --cni-bin-dir, --cni-conf-dir). Other flags are named
// in a warning.
//
// The section of a file that counts is that of the mode; where the file names no mode,
// the section iptables counts as well, because kube-proxy would read it.
//
// Three defaults differ from kube-proxy's. The mode is nftables, and NodePorts are on
// the primary addresses in every mode. There is no minimum time between two
// passes: a pass costs what has changed, and changes during a pass are the work of the next one.
// And "primary" means the node's primary addresses only: a family in which it has
// none gets no NodePorts, where kube-proxy opens all addresses of the family.
//
// This package imports k8s.io/kube-proxy for the types of the file, the one exception
// to the rule that only internal/kube knows the Kubernetes API.
package config

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Modes are the values of --proxy-mode, in the order in which messages name them.
func Modes() []string { return append(datapath.Modes(), datapath.Auto, datapath.None) }

// The ways to tell pods from others (kube-proxy's detectLocalMode).
const (
	DetectClusterCIDR = "ClusterCIDR"         // by ClusterCIDRs
	DetectNodeCIDR    = "NodeCIDR"            // by the podCIDRs of our node
	DetectBridge      = "BridgeInterface"     // by the bridge that they come in at
	DetectPrefix      = "InterfaceNamePrefix" // by the names of their links
)

// The pod networks that the agent can make.
const (
	PodNetworkNone   = "none"   // another program makes it
	PodNetworkRoutes = "routes" // our CNI plugin, and a route to every other node
	PodNetworkVXLAN  = "vxlan"  // our CNI plugin, and a tunnel to every other node
	PodNetworkAuto   = "auto"   // routes to nodes in the same subnet, the tunnel to others

	PodNetworkWireGuard = "wireguard" // our CNI plugin, and encryption to every other node
	PodNetworkBGP       = "bgp"       // routes to nodes in the same subnet, routers that announce them to others
)

// PodNetworks are the values of --pod-network.
func PodNetworks() []string {
	return []string{PodNetworkNone, PodNetworkRoutes, PodNetworkVXLAN, PodNetworkAuto, PodNetworkWireGuard, PodNetworkBGP}
}

// ConnectsPods reports whether the agent makes the pod network, in whatever way.
func (c *Config) ConnectsPods() bool { return c.PodNetwork != PodNetworkNone }

// A Config is every option of the agent, with defaults applied and checked.
type Config struct {
	Kubeconfig  string // path; empty: the pod's service account
	Master      string // URL of the API server; empty: as Kubeconfig says
	QPS         float32
	Burst       int
	ContentType string
	AllowHTTP   bool // accept an API server without TLS that is not on this machine
	// Person says that a person runs the command: without Kubeconfig and Master it goes where
	// kubectl would.
	Person bool

	// EmptyAfter is how long the API server must say that most objects are gone, before they
	// are; 0: once is enough.
	EmptyAfter time.Duration

	NodeName string
	Mode     string // one of Modes

	// BindAddress replaces the node's address of its family that the API server
	// reports. Invalid: it replaces nothing. Nothing is bound to it.
	BindAddress netip.Addr
	// Healthz and Metrics are where the HTTP servers listen. Invalid: they do not listen.
	Healthz, Metrics netip.AddrPort

	Detect       string // DetectClusterCIDR or DetectNodeCIDR
	ClusterCIDRs []netip.Prefix
	PodInterface string // with the interface detectors; a name, or a prefix and "*"
	NodePorts    NodePorts

	// RefuseExternalIPs leaves out spec.externalIPs.
	RefuseExternalIPs bool
	Limits            service.Limits // of Services
	MasqueradeAll     bool
	MasqueradeBit     int // of the packet mark, 0 to 31

	Conntrack Conntrack
	IPVS      IPVS // what mode ipvs alone knows
	// CountTraffic asks for counters of each Service port, which cost each connection
	// some time.
	CountTraffic bool
	// ReplaceKubeProxy makes the agent remove kube-proxy's rules once its own are in place.
	ReplaceKubeProxy bool

	// SyncPeriod bounds how long a change may wait before the agent counts as sick
	// (after twice that) and how long a failed pass waits to be tried again.
	SyncPeriod    time.Duration
	MinSyncPeriod time.Duration // between the starts of two passes; 0: none

	// OOMScoreAdj is the agent's oom_score_adj: how soon the kernel ends it when memory is short,
	// -1000 (never) to 1000; nil leaves it.
	OOMScoreAdj *int

	PodNetwork            string // one of PodNetworks
	CNIBinDir, CNIConfDir string
	NonMasqueradeCIDRs    []netip.Prefix // that see pods' own addresses
	EgressAddresses       bool           // let pods leave with Services' addresses
	NetworkPolicy         bool           // enforce NetworkPolicies
	NetworkPolicyLog      bool           // log what they deny
	NetworkPolicyReject   bool           // reject it, instead of dropping it
	Cleanup               bool           // remove all that was programmed, and exit
	AfterKubeProxy        bool           // but wait first until a kube-proxy has written its rules
	LogLevel              slog.Level
	LogJSON               bool // the log is JSON, not text
	// Warnings are one line each, for the log.
	Warnings []string
}

// IPVS are the options of mode ipvs.
type IPVS struct {
	Scheduler service.Algorithm // of Services that name none
	// TCP, TCPFin and UDP are how long idle connections are kept; 0: the kernel's setting stays.
	TCP, TCPFin, UDP time.Duration
}

// NodePorts says on which of the node's addresses NodePorts are served.
type NodePorts struct {
	Primary  bool           // on the node's primary address of each family
	Prefixes []netip.Prefix // and on all in these
	Loopback []netip.Addr   // and on these loopback addresses, for the node's own processes
}

// Mask is MasqueradeBit as a packet mark.
func (c *Config) Mask() uint32 { return 1 << c.MasqueradeBit }

// HealthTimeout is how long a change may wait before the agent counts as sick.
func (c *Config) HealthTimeout() time.Duration { return 2 * c.SyncPeriod }

// Node computes what a datapath and service.Compile must know of the node, from what the
// API server says of it: its zone, its addresses with the best one of each family first,
// and its podCIDRs. ServiceCIDRs, APIServers, Unsupported and the addresses of other nodes
// are left to the caller.
func (c *Config) Node(zone string, addrs []netip.Addr, podCIDRs []netip.Prefix) service.Node {
	s := service.Settings{Pods: c.ClusterCIDRs, NodePorts: slices.Clone(c.NodePorts.Prefixes)}
	switch c.Detect {
	case DetectNodeCIDR:
		s.Pods = podCIDRs
	case DetectBridge, DetectPrefix:
		s.Pods, s.PodInterfaces = nil, []string{c.PodInterface}
	}
	s.NodeIPs = c.primary(addrs)
	if c.NodePorts.Primary {
		for _, a := range s.NodeIPs {
			s.NodePorts = append(s.NodePorts, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	s.NodePorts = service.Widest(slices.Clone(s.NodePorts))
	own := slices.Concat(s.NodeIPs, addrs)
	for _, p := range s.NodePorts {
		if p.IsSingleIP() {
			own = append(own, p.Addr())
		}
	}
	n := service.Node{
		NodeAddrs: service.NewAddrSet(own...),
		Name:      c.NodeName, Zone: zone, Settings: s,
		MasqueradeAll: c.MasqueradeAll, RefuseExternalIPs: c.RefuseExternalIPs, EgressOff: !c.EgressAddresses, Limits: c.Limits,
		Balance: c.balance(),
	}
	for _, a := range s.NodeIPs {
		if a.Is4() {
			n.Primary4 = a
		} else {
			n.Primary6 = a
		}
	}
	return n
}

// balance is the algorithm of Services that name no algorithm.
func (c *Config) balance() service.Algorithm {
	switch c.Mode {
	case datapath.IPVS:
		return c.IPVS.Scheduler
	case datapath.Userspace: // as the proxy of old was known for
		return service.RoundRobin
	}
	return service.Random
}

// primary returns the node's address of each family that has one. Loopback addresses
// are left out: no client reaches them.
func (c *Config) primary(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range append([]netip.Addr{c.BindAddress}, addrs...) {
		a = a.Unmap()
		if !a.IsValid() || a.IsLoopback() || a.IsUnspecified() {
			continue
		}
		if !slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
			out = append(out, a.WithZone(""))
		}
	}
	return out
}
