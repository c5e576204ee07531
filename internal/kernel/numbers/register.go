package numbers

// A Space is a kind of number. Only numbers of the same kind can conflict.
type Space int

// The spaces in the order of docs/numbers.md. Marks are compared bit by bit, other numbers as ranges.
const (
	PacketMark Space = iota
	ConnMark
	Priority
	RouteProto
	RouteTable
	RulePriority
	TCPPort
	UDPPort
)

var spaceNames = [...]string{
	PacketMark: "Mark of a packet", ConnMark: "Mark of a connection (conntrack)", Priority: "Priority of a packet",
	RouteProto: "Protocol of a route or an ip rule", RouteTable: "Table of routes", RulePriority: "Priority of an ip rule",
	TCPPort: "TCP port", UDPPort: "UDP port",
}

func (s Space) String() string { return spaceNames[s] }

// bits reports whether numbers of the space are bit masks.
func (s Space) bits() bool { return s == PacketMark || s == ConnMark }

// A Number is a number, a range of numbers, or the value of some bits of a mark.
type Number struct {
	Space Space
	From  uint32
	To    uint32 // the last number of a range; 0: one number only
	Mask  uint32 // for marks: the bits that the owner tests; 0: the bits of From
	Owner string // the program that uses the number; "": Fairway
	For   string // the purpose
	// Shared says why another program may use a number of Fairway too; "": no other program may.
	Shared string
}

func (n Number) last() uint32 { return max(n.From, n.To) }

func (n Number) mask() uint32 {
	if n.Mask == 0 {
		return n.From
	}
	return n.Mask
}

// overlaps reports whether a value can be both n and o. Two marks overlap if they test common bits and expect the same
// value of them. Two marks without common bits do not overlap: each leaves the bits of the other alone.
func (n Number) overlaps(o Number) bool {
	switch {
	case n.Space != o.Space:
		return false
	case n.Space.bits():
		both := n.mask() & o.mask()
		return both != 0 && n.From&both == o.From&both
	}
	return n.From <= o.last() && o.From <= n.last()
}

// Ours has the numbers of Fairway.
var Ours = []Number{
	{Space: PacketMark, From: MarkMasquerade, For: "masquerade (`--nftables-masquerade-bit`, `iptables.masqueradeBit`)", Shared: "it is kube-proxy's and means the same"},
	{Space: PacketMark, From: MarkUserspace, For: "mode userspace: leads a packet to a socket of the agent"},
	{Space: PacketMark, From: MarkUserspaceElse, For: "mode userspace, if bit 12 is configured for masquerading"},
	{Space: PacketMark, From: MarkEgress, Mask: MaskEgress, For: "`--egress-addresses`: the packet leaves the cluster with a load-balancer address; the last byte says by which node"},
	{Space: PacketMark, From: MarkTicket, Mask: MaskFence, For: "speaker: a packet on `lo` that marks the time of a request for a grant; it never leaves the node"},
	{Space: PacketMark, From: MarkConfirm, Mask: MaskFence, For: "speaker: a packet on `lo` that confirms the grant; it never leaves the node"},
	{Space: ConnMark, From: ConnMarkReset, For: "a connection that is being reset; it also has conntrack's status fixed timeout"},
	{Space: ConnMark, From: ConnMarkChosen, Mask: 0xff << 24, For: "mode iptables, affinity: a newly chosen endpoint, until the first packet has left"},
	{Space: ConnMark, From: ConnMarkKnown, Mask: 0xff << 24, For: "mode iptables, affinity: the client's known endpoint, until the first packet has left"},
	{Space: Priority, From: PriorityChallenge, For: "packets that make the ends of a connection answer before a reset"},
	{Space: Priority, From: PriorityRefused, For: "packets that NetworkPolicies deny, between a lookup and the reject"},
	{Space: Priority, From: PriorityAffinity, To: PriorityAffinityLast, For: "mode nftables, affinity: a connection's first packet, between two hooks; the priority is reset after them"},
	{Space: RouteProto, From: RouteProtocol, For: "all of Fairway's routes and ip rules"},
	{Space: RouteTable, From: RouteTableUserspace, For: "mode userspace: everything is local"},
	{Space: RouteTable, From: RouteTableEgress, To: RouteTableEgress + RouteTablesEgress - 1, For: "`--egress-addresses`: routes to the nodes that announce egress addresses"},
	{Space: RouteTable, From: RouteTableAnswer, For: "`--egress-addresses`: answers to pods on nodes behind WireGuard"},
	{Space: RulePriority, From: RulePriorityEgress, For: "`--egress-addresses`: leads marked packets to tables 1071–1100 and 1101"},
	{Space: RulePriority, From: RulePriorityUserspace, For: "mode userspace: leads marked packets to table 1070"},
	{Space: TCPPort, From: PortDNS, For: "cluster DNS", Shared: "it is DNS', on an address of its own"},
	{Space: TCPPort, From: PortDNSZones, For: "`fairway dns --zone`: names outside the cluster"},
	{Space: TCPPort, From: PortBGP, For: "BGP: the speaker connects to it on routers and does not listen there", Shared: "it is BGP's"},
	{Space: TCPPort, From: PortControllerMetrics, For: "`fairway controller`: metrics", Shared: "MetalLB's controller has it too; both listen in a pod"},
	{Space: TCPPort, From: PortGatewayMetrics, For: "`fairway gateway`: metrics and health"},
	{Space: TCPPort, From: PortNamesMetrics, For: "`fairway names sync`: metrics and health"},
	{Space: TCPPort, From: PortDNSMetrics, For: "cluster DNS: metrics", Shared: "it is CoreDNS'; it listens in a pod"},
	{Space: TCPPort, From: PortMetrics, For: "metrics, `/proxyMode`", Shared: "it is kube-proxy's, which Fairway replaces"},
	{Space: TCPPort, From: PortHealthz, For: "`/healthz`, `/livez`", Shared: "it is kube-proxy's, which Fairway replaces"},
	{Space: TCPPort, From: PortSpeakerMetrics, For: "`fairway speaker`: metrics, `/healthz`, `/readyz`"},
	{Space: TCPPort, From: PortEdgeMetrics, For: "`fairway edge`: metrics, `/healthz`, if configured"},
	{Space: TCPPort, From: PortReflector, For: "BGP between nodes: the speaker of a route reflector listens here"},
	{Space: TCPPort, From: PortUserspace, To: PortUserspace + PortsUserspace - 1, For: "mode userspace: listeners on loopback addresses; if these ports are taken, the next ones"},
	{Space: UDPPort, From: PortDNS, For: "cluster DNS", Shared: "it is DNS', on an address of its own"},
	{Space: UDPPort, From: PortDNSZones, For: "`fairway dns --zone`: names outside the cluster"},
	{Space: UDPPort, From: PortBFD, For: "BFD over one hop, while a BGPPeer has a bfdProfile", Shared: "it is BFD's; only one program on a node can use it"},
	{Space: UDPPort, From: PortBFDMultiHop, For: "BFD over several hops, while a BGPPeer has a bfdProfile", Shared: "it is BFD's; only one program on a node can use it"},
	{Space: UDPPort, From: PortVXLAN, For: "the tunnel of `--pod-network vxlan` and `auto`, VNI 70; VNI 71 inside of WireGuard, with `--egress-addresses`", Shared: "it is VXLAN's; networks of other programs have other VNIs"},
	{Space: UDPPort, From: PortUserspace, To: PortUserspace + PortsUserspace - 1, For: "mode userspace: listeners on loopback addresses; if these ports are taken, the next ones"},
	{Space: UDPPort, From: PortHeartbeat, For: "heartbeats between speakers, and between edges"},
	{Space: UDPPort, From: PortWireGuard, For: "`--pod-network wireguard`: encrypted packets between nodes"},
}

// A Table is a table of nf_tables that Fairway makes. Its family is inet, unless For names another.
type Table struct {
	Name, For string
	Hooks     []Hook
}

// A Hook is a base chain of a table.
type Hook struct {
	Type, Hook string
	Priority   int
}

// Tables has all tables of Fairway.
var Tables = []Table{
	{TableNFTables, "mode nftables: Services", []Hook{
		{"nat", "prerouting", -100}, {"nat", "output", -100}, {"filter", "forward", 0}, {"nat", "postrouting", 100},
		{"filter", "prerouting", -90}, {"filter", "output", -90}, {"filter", "prerouting", HookAffinity}, {"filter", "output", HookAffinity},
	}},
	{TableIPTables, "mode iptables: affinity, and unused ports of ClusterIPs; the other rules are in iptables' own `ip nat`, `ip filter`, …", []Hook{
		{"filter", "prerouting", -101}, {"filter", "output", -101}, {"filter", "prerouting", -99}, {"filter", "output", -99},
		{"filter", "input", 1}, {"filter", "forward", 1}, {"filter", "output", 1},
	}},
	{TableIPVS, "mode ipvs: leads packets to virtual servers", []Hook{
		{"nat", "prerouting", -100}, {"nat", "output", -100}, {"filter", "prerouting", -99}, {"filter", "output", -99},
		{"filter", "input", 101}, {"filter", "postrouting", 101}, {"filter", "forward", 0}, {"nat", "postrouting", 100},
	}},
	{TableUserspace, "mode userspace: leads packets to the sockets", []Hook{
		{"filter", "prerouting", -150}, {"route", "output", -150}, {"nat", "prerouting", -101}, {"nat", "output", -101},
		{"filter", "forward", 0},
	}},
	{TableEBPF, "mode ebpf: Services, for the packets of all sockets that its programs leave alone; the rules of mode nftables", []Hook{
		{"nat", "prerouting", -100}, {"nat", "output", -100}, {"filter", "forward", 0}, {"nat", "postrouting", 100},
		{"filter", "prerouting", -90}, {"filter", "output", -90}, {"filter", "prerouting", HookAffinity}, {"filter", "output", HookAffinity},
	}},
	{TableReset, "connections that are being reset; the table exists only during resets", []Hook{
		{"filter", "prerouting", HookReset}, {"filter", "output", HookReset}, {"filter", "output", HookChallenge},
	}},
	{TableFence, "family netdev: mutes the node for load-balancer addresses that it does not hold", []Hook{{"filter", "egress", 0}}},
	{TableFormer, "families ip and ip6: passes packets of unknown open connections through a load-balancer address, and ICMP errors about them, on to the address' previous owner, or to the other nodes that routers send them to", []Hook{{"filter", "prerouting", -150}}},
	{TablePeers, "`load-balancer`: drops forwarded packets to the BGP and BFD ports of the node's BGPPeers that have an address of the node; the table exists while there are such BGPPeers", []Hook{{"filter", "postrouting", HookPeers}}},
	{TableAggregates, "drops forwarded packets to addresses of a BGP aggregate that no Service has; the table exists only while the node announces an aggregate", []Hook{{"filter", "forward", 0}}},
	{TablePods, "`--pod-network`: drops pods' packets with a false source address, masquerades packets that leave the cluster, and keeps others out of the tunnel", []Hook{
		{"filter", "prerouting", HookSourceCheck}, {"nat", "postrouting", HookPods}, {"filter", "output", HookRaw},
		{"filter", "input", HookRaw}, {"filter", "forward", HookRaw},
	}},
	{TableConntrack, "`--pod-network`: drops new connections of pods with more than their share of the conntrack table; the table exists only while there are such pods", []Hook{{"filter", "prerouting", HookShare}}},
	{TableHostPorts, "hostPorts on 127.0.0.1 and ::1, for clients with another address of the node; the table exists only while there are such hostPorts", []Hook{{"nat", "output", HookHostPorts}}},
	{TableEgress, "`--egress-addresses`: marks and translates packets that leave the cluster from pods with an egress address", []Hook{
		{"filter", "prerouting", HookSourceCheck}, {"filter", "input", HookRaw}, {"filter", "prerouting", HookEgressMark}, {"route", "output", HookEgressMark}, {"filter", "forward", 0}, {"nat", "postrouting", HookEgress}, {"filter", "postrouting", HookEgressUnmark},
	}},
	{TablePolicy, "`--network-policy`: NetworkPolicies of this node's pods", []Hook{
		{"filter", "postrouting", HookPolicy}, {"filter", "input", HookPolicyInput}, {"filter", "forward", HookPolicy},
	}},
	{TablePath + "RUN", "`fairway path`: has nf_tables report the rules that a probe meets; the kernel deletes the table when the run ends", []Hook{
		{"filter", "prerouting", HookTrace}, {"filter", "output", HookTrace}, {"filter", "prerouting", HookTraceReply}, {"filter", "output", HookTraceReply},
	}},
	{TableLock, "empty: the lock against a second agent on the node; the table exists while the agent runs, and only the agent can change it", nil},
	{TableLockSpeaker, "empty: the lock against a second speaker on the node", nil},
}
