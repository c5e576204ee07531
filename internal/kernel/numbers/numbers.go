// Package numbers is the register of the numbers that Fairway shares with other programs on
// a node: marks, priorities, routes, ports and the names of tables.
//
//	constant ─ used by ─→ datapaths, reset, node, cni, config
//	   └─ listed in Ours ─ compared with Others by the test ─→ docs/numbers.md
//
// It promises that no two of ours overlap and that none is another program's default, unless
// the number means the same to both (Shared says so). A new number is added here first.
package numbers

import "encoding/binary"

// NetworkOrder returns v with its bytes as they are on the wire: so the kernel wants EtherTypes in
// addresses of packet sockets.
func NetworkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Marks of packets. Each is one bit, because other programs use the others.
const (
	// MasqueradeBit is the bit of kube-proxy's mark for packets to masquerade.
	MasqueradeBit = 14
	// MarkMasquerade is that bit's mark.
	MarkMasquerade = 1 << MasqueradeBit
	// MarkUserspace means "to a socket of mode userspace".
	MarkUserspace = 1 << 12
	// MarkTicket and MarkConfirm, with a slot in their last byte (not MaskFence), are of packets that never
	// leave the node: they tell the fence of a speaker's requests and grants.
	MarkTicket  = 0x0fa10100
	MarkConfirm = 0x0fa10200
	MaskFence   = 0xffffff00
	// MarkUserspaceElse is taken where MarkUserspace is configured for masquerading.
	MarkUserspaceElse = 1 << 4
	// MarkEgress, with the last byte (not MaskEgress), is the whole mark of packets of pods that leave the cluster with
	// a load-balancer address: by this node (0), by nobody (EgressNobody), else by which node. It has no bit
	// that others look at alone.
	MarkEgress   = 0x0fa10300
	MaskEgress   = 0xffffff00
	EgressNobody = MarkEgress | 0x2f
	// EgressAnswer is that of answers to such pods of nodes which WireGuard leads to.
	EgressAnswer = MarkEgress | 0x40
)

// Marks of connections (conntrack).
const (
	// ConnMarkReset is the bit of a connection that is being reset, which also has a fixed
	// timeout.
	ConnMarkReset = 1 << 26
	// ConnMarkChosen and ConnMarkKnown are the first bytes of the mark that a new connection
	// with affinity has in mode iptables until its first packet has left: with an endpoint
	// that was chosen, or with that of a client that was known. ConnMarkNumber is the rest.
	ConnMarkChosen = 0xfa << 24
	ConnMarkKnown  = 0xfb << 24
	ConnMarkNumber = 1<<24 - 1
)

// PriorityChallenge is the priority (SO_PRIORITY) of the packets that make the ends of a
// connection answer before it is reset. Classes of traffic are small numbers.
const PriorityChallenge = 0x0fa1_0a11

// PriorityRefused is the priority of a packet that NetworkPolicies deny, within one hook.
const PriorityRefused = 0x0fa1_0a12

// PriorityAffinity is the range of priorities of packets that begin a connection with affinity, between the hooks of
// mode nftables: its highest four bits (PriorityAffinityLast: the last of the range).
const (
	PriorityAffinity     = 0xb000_0000
	PriorityAffinityLast = PriorityAffinity + (1<<28 - 1)
)

// Routes.
const (
	// RouteProtocol marks every route and ip rule of ours: 'F', which is free in iproute2's
	// rt_protos.
	RouteProtocol = 70
	// RouteTableUserspace has the local route for MarkUserspace, and RulePriorityUserspace
	// is that of the ip rule which leads there.
	RouteTableUserspace   = 1070
	RulePriorityUserspace = 1070
	// RouteTableEgress is the first of RouteTablesEgress tables, each with the way to a node that announces an
	// egress address. RouteTableAnswer, behind them, has the ways of answers.
	RouteTableEgress   = 1071
	RouteTablesEgress  = 30
	RouteTableAnswer   = RouteTableEgress + RouteTablesEgress
	RulePriorityEgress = 1071
)

// Ports.
const (
	// PortHealthz and PortMetrics are kube-proxy's, for what replaces it.
	PortHealthz = 10256
	PortMetrics = 10249
	// PortUserspace is the first of the listeners' of mode userspace, on loopback addresses;
	// PortsUserspace is how many there are. If they are taken, the next ones are.
	PortUserspace  = 10271
	PortsUserspace = 3
	// PortHeartbeat is for heartbeats between speakers (UDP).
	PortHeartbeat = 10280
	// PortSpeakerMetrics is the speaker's, for /metrics, /healthz and /readyz.
	PortSpeakerMetrics = 10281
	// PortEdgeMetrics is what the edge's documentation suggests for /metrics and /healthz; it
	// listens nowhere unless it is told to.
	PortEdgeMetrics = 10282
	// PortDNS and PortDNSMetrics are CoreDNS'.
	PortDNS        = 53
	PortDNSMetrics = 9153
	// PortControllerMetrics is MetalLB's controller's.
	PortControllerMetrics = 9120
	// PortBGP is reserved: IANA's.
	PortBGP = 179
	// PortReflector is for the sessions of BGP between nodes and a route reflector (TCP).
	PortReflector = 10283
	// PortBFD and PortBFDMultiHop are IANA's for BFD, over one hop and over several.
	PortBFD         = 3784
	PortBFDMultiHop = 4784
	// PortVXLAN is IANA's for VXLAN, which other tunnels on a node share: VNI is our network.
	PortVXLAN = 4789
	// PortWireGuard is for the pod network's WireGuard (UDP). Its usual port 51820 is that of tunnels that an
	// administrator makes, and one of those that the kernel gives to sockets without a port.
	PortWireGuard = 10282
)

// VNI is the number of the pod network in VXLAN: that of our routes' protocol. Others' at that port begin at
// 4096 (Calico, Docker). VNIEgress is that of packets with egress addresses inside of WireGuard.
const (
	VNI       = 70
	VNIEgress = 71
)

// HostPorts are ranges of ports at which nodes' own programs listen, whatever the protocol:
// those below and sshd, rpcbind, etcd, MetalLB's memberlist. ServiceLB gives none of them to a
// Service.
var HostPorts = [][2]uint16{
	{22, 22}, {111, 111}, {PortBGP, PortBGP}, {2379, 2382}, {PortBFD, PortBFD}, {4240, 4244},
	{PortBFDMultiHop, PortBFDMultiHop}, {PortVXLAN, PortVXLAN}, {6443, 6444}, {7472, 7473}, {7946, 7946},
	{8472, 8472}, {9099, 9100}, {10248, 10283}, {30000, 32767},
}

// Tables of nf_tables, all of family inet but TableFence, which is of netdev, and TableFormer, of ip and ip6.
const (
	TableNFTables  = "fairway"
	TableIPTables  = "fairway-iptables"
	TableIPVS      = "fairway-ipvs"
	TableUserspace = "fairway-userspace"
	TableReset     = "fairway-reset"
	TablePods      = "fairway-pods"
	TableHostPorts = "fairway-hostports"
	TableFence     = "fairway-fence"
	TableFormer    = "fairway-former"
	TablePolicy    = "fairway-policy"
	TableEgress    = "fairway-egress"
)

// Priorities of nf_tables' hooks that Go code sets; the others stand in the rulesets.
const (
	// HookReset is before whatever translates, HookChallenge before conntrack.
	HookReset     = -160
	HookChallenge = -310
	// HookPods is behind the Services' masquerading (srcnat).
	HookPods = 110
	// HookEgress is before HookPods, which would masquerade.
	HookEgress = 109
	// HookEgressMark is behind what translates destinations (dstnat), before the routing decision.
	HookEgressMark = -80
	// HookEgressUnmark is behind all that translates sources.
	HookEgressUnmark = 120
	// HookHostPorts is before the Services' translation (dstnat, on output -100).
	HookHostPorts = -102
	// HookSourceCheck is before all others: a packet with a false source is nobody's. It is where netfilter's "raw before
	// defrag" is: what looks at sources sees each fragment.
	HookSourceCheck = -450
	// HookRaw is before conntrack (NF_IP_PRI_RAW).
	HookRaw = -300
	// HookPolicy is behind what translates destinations, and before what translates sources
	// (srcnat).
	HookPolicy = 95
	// HookPolicyInput is behind IPVS (98, 99), which takes what is for a Service's address.
	HookPolicyInput = 101
	// HookAffinity is one behind that of releases up to 16d7bce: while both are there, in an
	// upgrade, theirs note into their map, until the rules are switched over.
	HookAffinity = -98
)

// EtherTypeFence is the protocol of the packets with MarkTicket and MarkConfirm: IEEE 802's
// first for local experiments.
const EtherTypeFence = 0x88b5

// The ranges of IPVS' virtual servers. 240.0.0.0/4 is reserved and never routed; the other
// one is a unique local prefix.
const (
	RangeIPVS4 = "250.64.0.0/10"
	RangeIPVS6 = "fd66:6169:7277:6179::/64"
)
