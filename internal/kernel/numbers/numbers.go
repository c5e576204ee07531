// Package numbers is the register of the numbers that Fairway shares with other programs on
// a node: marks, priorities, routes, ports and the names of tables.
//
//	constant ─ used by ─→ datapaths, reset, node, cni, config
//	   └─ listed in Ours ─ compared with Others by the test ─→ docs/numbers.md
//
// It promises that no two numbers of Fairway overlap. It also promises that no number of Fairway is the default of
// another program, unless Shared gives a reason. Whoever needs a new number adds it here first.
package numbers

import "encoding/binary"

// NetworkOrder returns v in network byte order. In addresses of packet sockets the kernel expects EtherTypes in this
// order.
func NetworkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Marks of packets. A mark of Fairway is one bit, because other programs use other bits. Exceptions are whole marks.
const (
	// MasqueradeBit is the bit of kube-proxy's mark for packets to masquerade.
	MasqueradeBit = 14
	// MarkMasquerade is the mark with MasqueradeBit.
	MarkMasquerade = 1 << MasqueradeBit
	// MarkUserspace leads a packet to a socket of mode userspace.
	MarkUserspace = 1 << 12
	// MarkTicket and MarkConfirm are whole marks of packets that never leave the node. They tell the fence about a
	// speaker's requests and grants. The last byte, outside of MaskFence, is the number of a slot.
	MarkTicket  = 0x0fa10100
	MarkConfirm = 0x0fa10200
	MaskFence   = 0xffffff00
	// MarkUserspaceElse replaces MarkUserspace if that bit is configured for masquerading.
	MarkUserspaceElse = 1 << 4
	// MarkEgress is the whole mark of packets from pods that leave the cluster with a load-balancer address. The last
	// byte, outside of MaskEgress, says through which node: 0 is this node. EgressNobody means that no node announces
	// the address. No other program tests a single bit of this mark.
	MarkEgress   = 0x0fa10300
	MaskEgress   = 0xffffff00
	EgressNobody = MarkEgress | 0x2f
	// EgressAnswer is the mark of answers to pods with an egress address, on nodes behind WireGuard.
	EgressAnswer = MarkEgress | 0x40
)

// Marks of connections (conntrack).
const (
	// ConnMarkReset is the bit of a connection that is being reset. Such a connection also has conntrack's status
	// "fixed timeout".
	ConnMarkReset = 1 << 26
	// ConnMarkChosen and ConnMarkKnown are first bytes of a connection's mark in mode iptables. A new connection with
	// affinity has such a mark until its first packet has left the node. Chosen: the endpoint was chosen now. Known:
	// the endpoint is that of a known client. ConnMarkNumber has the bits of the endpoint's number.
	ConnMarkChosen = 0xfa << 24
	ConnMarkKnown  = 0xfb << 24
	ConnMarkNumber = 1<<24 - 1
)

// PriorityChallenge is the priority (SO_PRIORITY) of packets that provoke an answer from both ends of a connection
// before its reset. Priorities for traffic classes are small numbers.
const PriorityChallenge = 0x0fa1_0a11

// PriorityRefused is the priority of a packet that NetworkPolicies deny. The packet has it within one hook only.
const PriorityRefused = 0x0fa1_0a12

// PriorityAffinity and PriorityAffinityLast are the first and the last priority of a range. In mode nftables the first
// packet of a connection with affinity has such a priority between two hooks.
const (
	PriorityAffinity     = 0xb000_0000
	PriorityAffinityLast = PriorityAffinity + (1<<28 - 1)
)

// Routes.
const (
	// RouteProtocol is the protocol of all routes and ip rules of Fairway: 'F'. iproute2's rt_protos does not use this
	// number.
	RouteProtocol = 70
	// RouteTableUserspace has the local route for MarkUserspace. RulePriorityUserspace is the priority of the ip rule
	// that leads to this table.
	RouteTableUserspace   = 1070
	RulePriorityUserspace = 1070
	// RouteTableEgress is the first of RouteTablesEgress tables. Each table has the route to a node that announces an
	// egress address. RouteTableAnswer is the next table, with the routes of answers.
	RouteTableEgress   = 1071
	RouteTablesEgress  = 30
	RouteTableAnswer   = RouteTableEgress + RouteTablesEgress
	RulePriorityEgress = 1071
)

// Ports.
const (
	// PortHealthz and PortMetrics are the ports of kube-proxy, which the agent replaces.
	PortHealthz = 10256
	PortMetrics = 10249
	// PortUserspace is the first of PortsUserspace ports for the listeners of mode userspace, on loopback addresses. If
	// other programs use these ports, the next free ports take their place.
	PortUserspace  = 10271
	PortsUserspace = 3
	// PortHeartbeat is for heartbeats between speakers (UDP).
	PortHeartbeat = 10280
	// PortSpeakerMetrics is the port of the speaker for /metrics, /healthz and /readyz.
	PortSpeakerMetrics = 10281
	// PortEdgeMetrics is the port that the edge's documentation suggests for /metrics and /healthz. The edge listens
	// only if it is configured.
	PortEdgeMetrics = 10282
	// PortDNS and PortDNSMetrics are the ports of CoreDNS. PortDNSZones answers names outside the cluster.
	PortDNS        = 53
	PortDNSMetrics = 9153
	PortDNSZones   = 8053
	// PortControllerMetrics is the port of MetalLB's controller.
	PortControllerMetrics = 9120
	// PortGatewayMetrics is the port of the gateway for /metrics, /healthz and /readyz, in its pod.
	PortGatewayMetrics = 9121
	// PortNamesMetrics is the port of `fairway names sync` for /metrics, /healthz and /readyz, in its pod.
	PortNamesMetrics = 9122
	// PortBGP is the port that IANA assigned to BGP.
	PortBGP = 179
	// PortReflector is for BGP sessions between nodes and a route reflector (TCP).
	PortReflector = 10283
	// PortBFD and PortBFDMultiHop are the ports that IANA assigned to BFD over one hop and over several hops.
	PortBFD         = 3784
	PortBFDMultiHop = 4784
	// PortVXLAN is the port that IANA assigned to VXLAN. All tunnels of a node share it, and VNI identifies our
	// network.
	PortVXLAN = 4789
	// PortWireGuard is for WireGuard in the pod network (UDP). The usual port 51820 is not suitable: administrators use
	// it for their own tunnels, and the kernel may give it to any socket without a fixed port.
	PortWireGuard = 10282
)

// VNI is the number of the pod network in VXLAN, equal to RouteProtocol. The numbers of other programs begin at 4096
// (Calico, Docker). VNIEgress is for packets with egress addresses inside of WireGuard.
const (
	VNI       = 70
	VNIEgress = 71
)

// HostPorts has ranges of ports, of all protocols, on which programs of nodes listen: sshd, rpcbind, etcd, MetalLB's
// memberlist, and the programs in others.txt. ServiceLB gives none of these ports to a Service.
var HostPorts = [][2]uint16{
	{22, 22}, {111, 111}, {PortBGP, PortBGP}, {2379, 2382}, {PortBFD, PortBFD}, {4240, 4244},
	{PortBFDMultiHop, PortBFDMultiHop}, {PortVXLAN, PortVXLAN}, {6443, 6444}, {7472, 7473}, {7946, 7946},
	{8472, 8472}, {9099, 9100}, {10248, 10283}, {30000, 32767},
}

// Tables of nf_tables. Their family is inet, except for TableFence (netdev) and TableFormer (ip and ip6).
const (
	TableNFTables   = "fairway"
	TableIPTables   = "fairway-iptables"
	TableIPVS       = "fairway-ipvs"
	TableUserspace  = "fairway-userspace"
	TableEBPF       = "fairway-ebpf"
	TableReset      = "fairway-reset"
	TablePods       = "fairway-pods"
	TableHostPorts  = "fairway-hostports"
	TableFence      = "fairway-fence"
	TableFormer     = "fairway-former"
	TableAggregates = "fairway-aggregates"
	TablePolicy     = "fairway-policy"
	TableEgress     = "fairway-egress"
	TablePeers      = "fairway-peers"
	TableConntrack  = "fairway-conntrack"
	TableLock       = "fairway-lock"

	TableLockSpeaker = "fairway-lock-speaker"

	// TablePath begins the names of the tables of `fairway path`, one for each run.
	TablePath = "fairway-path-"
)

// Priorities of nf_tables' hooks that Go code sets. The other priorities are in the rulesets.
const (
	// HookReset comes before all translation. HookChallenge comes before conntrack.
	HookReset     = -160
	HookChallenge = -310
	// HookShare comes after conntrack, and before all rules that translate or count.
	HookShare = -180
	// HookPods comes after the masquerading of Services (srcnat).
	HookPods = 110
	// HookEgress comes before the masquerading of Services and of other programs (srcnat), and before HookPods.
	HookEgress = 99
	// HookEgressMark comes after the translation of destinations (dstnat), and before the routing decision.
	HookEgressMark = -80
	// HookEgressUnmark comes after all translation of sources.
	HookEgressUnmark = 120
	// HookPeers comes after all translation of sources.
	HookPeers = 130
	// HookHostPorts comes before the translation of Services (dstnat; -100 on output).
	HookHostPorts = -102
	// HookSourceCheck comes before all other hooks, so that no rule sees a packet with a forged source. It is
	// netfilter's "raw before defrag": the check sees each fragment.
	HookSourceCheck = -450
	// HookTrace comes before HookSourceCheck, so that a trace shows all hooks. HookTraceReply comes after conntrack, which
	// knows the direction, and before all translation.
	HookTrace      = -460
	HookTraceReply = -199
	// HookRaw comes before conntrack (NF_IP_PRI_RAW).
	HookRaw = -300
	// HookPolicy comes after the translation of destinations, and before the translation of sources (srcnat).
	HookPolicy = 95
	// HookPolicyInput comes after IPVS (98, 99), which takes packets to Services.
	HookPolicyInput = 101
	// HookAffinity comes after the translation of Services (dstnat; -100 on output).
	HookAffinity = -98
)

// EtherTypeFence is the EtherType of packets with MarkTicket and MarkConfirm: the first EtherType of IEEE 802 for local
// experiments.
const EtherTypeFence = 0x88b5

// Ranges for the addresses of IPVS's virtual servers. RangeIPVS4 is part of 240.0.0.0/4, which is reserved and never
// routed. RangeIPVS6 is a unique local prefix.
const (
	RangeIPVS4 = "250.64.0.0/10"
	RangeIPVS6 = "fd66:6169:7277:6179::/64"
)
