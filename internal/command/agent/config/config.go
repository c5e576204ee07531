// Package config knows every option of `fairway agent`: kube-proxy's flags, a KubeProxyConfiguration file, and a few
// flags of our own.
//
//	flags ───────────┐
//	                 ├─ Load ─→ Config ─ Settings(zone, addresses, podCIDRs) ─→ service
//	--config FILE ───┘            └─ Warnings: options without an effect
//
// A Config is complete and valid, so its readers check nothing. A mistake is one line that names the flag or the field. A
// known option without an effect is a warning. Nothing is ignored silently.
//
// As in kube-proxy, with --config only the file counts. The exceptions are --master, --hostname-override, --cleanup, -v
// and the flags without a field in the file, see besideFile. A warning names other flags. The section of the file that
// counts is the mode's section. If the file names no mode, the section iptables counts as well, because kube-proxy reads
// it.
//
// Three defaults differ from kube-proxy's:
//   - The mode is nftables, and NodePorts are on the primary addresses in every mode.
//   - Passes have no minimum distance: a pass costs what has changed, and the next pass takes changes during a pass.
//   - "primary" means the node's primary addresses only. A family without one gets no NodePorts, where kube-proxy opens
//     all addresses of the family.
//
// This package imports k8s.io/kube-proxy for the types of the file.
package config

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Modes returns the values of --proxy-mode, in the order of messages.
func Modes() []string { return append(datapath.Modes(), datapath.Auto, datapath.None) }

// The detectors of kube-proxy's detectLocalMode: how the node recognises traffic of pods.
const (
	DetectClusterCIDR = "ClusterCIDR"         // by ClusterCIDRs
	DetectNodeCIDR    = "NodeCIDR"            // by this node's podCIDRs
	DetectBridge      = "BridgeInterface"     // by the bridge that the packets arrive on
	DetectPrefix      = "InterfaceNamePrefix" // by the prefix of the interface's name
)

// The values of --pod-network.
const (
	PodNetworkNone   = "none"   // another program provides the pod network
	PodNetworkRoutes = "routes" // Fairway's CNI plugin, and a route to every other node
	PodNetworkVXLAN  = "vxlan"  // Fairway's CNI plugin, and a tunnel to every other node
	PodNetworkAuto   = "auto"   // routes to nodes in the same subnet, the tunnel to others

	PodNetworkWireGuard = "wireguard" // Fairway's CNI plugin, and encryption to every other node
	PodNetworkBGP       = "bgp"       // routes to nodes in the same subnet, routers with BGP to others
)

// PodNetworks returns the values of --pod-network.
func PodNetworks() []string {
	return []string{PodNetworkNone, PodNetworkRoutes, PodNetworkVXLAN, PodNetworkAuto, PodNetworkWireGuard, PodNetworkBGP}
}

// ConnectsPods reports whether the agent provides the pod network.
func (c *Config) ConnectsPods() bool { return c.PodNetwork != PodNetworkNone }

// A Config holds every option of the agent, with defaults applied and checked.
type Config struct {
	Kubeconfig  string // path; empty: the pod's service account
	Master      string // URL of the API server; empty: the URL in Kubeconfig
	QPS         float32
	Burst       int
	ContentType string
	AllowHTTP   bool // accept an API server on another machine without TLS
	// Person reports whether a person runs the command. Without Kubeconfig and Master it then uses kubectl's defaults.
	Person bool

	// Ejection is service.Node.Ejection.
	Ejection time.Duration
	// EmptyAfter is how long the API server must report that most objects are gone before they are removed. 0 removes
	// them at once.
	EmptyAfter time.Duration

	NodeName string
	Mode     string // one of Modes

	// BindAddress replaces the node's address of its family in the API server. The zero value replaces nothing. Nothing
	// listens on it.
	BindAddress netip.Addr
	// Healthz and Metrics are the HTTP servers' addresses. The zero value disables a server.
	Healthz, Metrics netip.AddrPort

	Detect       string // DetectClusterCIDR or DetectNodeCIDR
	ClusterCIDRs []netip.Prefix
	PodInterface string // for the interface detectors: a name, or a prefix and "*"
	NodePorts    NodePorts

	// RefuseExternalIPs ignores spec.externalIPs.
	RefuseExternalIPs bool
	Limits            service.Limits // of each Service and namespace
	MasqueradeAll     bool
	MasqueradeBit     int // of the packet mark, 0 to 31

	Conntrack Conntrack
	IPVS      IPVS // options of mode ipvs
	// CountTraffic enables counters for each Service port. Each connection then takes longer.
	CountTraffic bool
	// ReplaceKubeProxy removes kube-proxy's rules after Fairway's rules are in place.
	ReplaceKubeProxy bool

	// SyncPeriod is the longest pause before a failed pass is retried. The agent is unhealthy when a change has waited
	// twice as long.
	SyncPeriod    time.Duration
	MinSyncPeriod time.Duration // the shortest time between the starts of two passes; 0: none

	// OOMScoreAdj is the agent's oom_score_adj, from -1000 (never kill) to 1000. nil leaves it unchanged.
	OOMScoreAdj *int

	PodNetwork            string // one of PodNetworks
	CNIBinDir, CNIConfDir string
	NonMasqueradeCIDRs    []netip.Prefix // destinations that see pods' own addresses
	PodFragments          int            // IP fragments a second of each pod; 0: no limit
	EgressAddresses       bool           // pods leave with Services' addresses
	NetworkPolicy         bool           // enforce NetworkPolicies
	NetworkPolicyLog      bool           // log denied packets
	NetworkPolicyReject   bool           // reject denied packets instead of dropping them
	Cleanup               bool           // remove all rules, and exit
	AfterKubeProxy        bool           // with Cleanup: wait until a kube-proxy has written its rules
	LogLevel              slog.Level
	LogJSON               bool // log JSON instead of text
	// Warnings are for the log, one line each.
	Warnings []string
}

// IPVS holds the options of mode ipvs.
type IPVS struct {
	Scheduler service.Algorithm // for Services that name none
	// TCP, TCPFin and UDP are the timeouts of idle connections. 0 leaves the kernel's setting.
	TCP, TCPFin, UDP time.Duration
}

// NodePorts selects the node's addresses that serve NodePorts.
type NodePorts struct {
	Primary  bool           // the node's primary address of each family
	Prefixes []netip.Prefix // all addresses in these ranges
	Loopback []netip.Addr   // these loopback addresses, for the node's own processes
}

// Mask returns the packet mark of MasqueradeBit.
func (c *Config) Mask() uint32 { return 1 << c.MasqueradeBit }

// HealthTimeout returns how long a change may wait before the agent is unhealthy.
func (c *Config) HealthTimeout() time.Duration { return 2 * c.SyncPeriod }

// Node returns the node's facts for package service and the datapaths: its zone, its addresses with the best one of
// each family first, and its podCIDRs. The caller fills ServiceCIDRs, APIServers, Unsupported and the addresses of
// other nodes.
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
		NodeAddrs: service.NewAddrSet(own...), OwnAddrs: service.NewAddrSet(own...),
		Name: c.NodeName, Zone: zone, Settings: s,
		MasqueradeAll: c.MasqueradeAll, RefuseExternalIPs: c.RefuseExternalIPs, EgressOff: !c.EgressAddresses, Limits: c.Limits,
		Balance: c.balance(), Ejection: c.Ejection,
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

// balance returns the algorithm of Services that name none.
func (c *Config) balance() service.Algorithm {
	switch c.Mode {
	case datapath.IPVS:
		return c.IPVS.Scheduler
	case datapath.Userspace: // kube-proxy's userspace mode used round robin
		return service.RoundRobin
	}
	return service.Random
}

// primary returns the node's first address of each family. It skips loopback addresses, because no client reaches them.
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
