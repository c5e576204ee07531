package numbers

// A Space is what a number is one of.
type Space string

// The spaces. Marks are compared bit by bit, the rest as ranges.
const (
	PacketMark   Space = "Mark of a packet"
	ConnMark     Space = "Mark of a connection (conntrack)"
	Priority     Space = "Priority of a packet"
	RouteProto   Space = "Protocol of a route or an ip rule"
	RouteTable   Space = "Table of routes"
	RulePriority Space = "Priority of an ip rule"
	TCPPort      Space = "TCP port"
	UDPPort      Space = "UDP port"
)

// Spaces are all, in the order of the docs.
var Spaces = []Space{PacketMark, ConnMark, Priority, RouteProto, RouteTable, RulePriority, TCPPort, UDPPort}

// bits reports whether the space's numbers are bits: they overlap where a bit is in both.
func (s Space) bits() bool { return s == PacketMark || s == ConnMark }

// A Number is a number, or a range up to and with To, or the value of some bits of a mark.
type Number struct {
	Space Space
	From  uint32
	To    uint32 // of a range; 0: one number only
	Mask  uint32 // of a mark: the bits that are compared; 0: those of From
	Owner string // a program, of one of Others
	For   string // what it is for
	// Shared says, of one of ours, why others may have it too; empty: they may not.
	Shared string
}

func (n Number) last() uint32 { return max(n.From, n.To) }

func (n Number) mask() uint32 {
	if n.Mask == 0 {
		return n.From
	}
	return n.Mask
}

// overlaps reports whether something can be both n and o. Marks are different if a bit
// that both compare has two values; two single bits are, because each leaves the other
// alone.
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

// Ours are Fairway's.
var Ours = []Number{
	{Space: PacketMark, From: MarkMasquerade, For: "masquerade (`--nftables-masquerade-bit`, `iptables.masqueradeBit`)", Shared: "it is kube-proxy's and means the same"},
	{Space: PacketMark, From: MarkUserspace, For: "mode userspace: to a socket of the proxy (0x2000 up to 16d7bce; its ip rule is removed)"},
	{Space: PacketMark, From: MarkUserspaceElse, For: "mode userspace, where bit 12 is configured for masquerading"},
	{Space: PacketMark, From: MarkEgress, Mask: MaskEgress, For: "`--egress-addresses`: leaves the cluster with a load-balancer address; the last byte says by which node"},
	{Space: ConnMark, From: ConnMarkReset, For: "a connection that is being reset; it also has status fixed timeout (0x0800_0000 up to 16d7bce)"},
	{Space: ConnMark, From: ConnMarkChosen, Mask: 0xff << 24, For: "mode iptables, affinity: the endpoint that was chosen, until the first packet has left"},
	{Space: ConnMark, From: ConnMarkKnown, Mask: 0xff << 24, For: "mode iptables, affinity: the endpoint that the client was known at, until the first packet has left"},
	{Space: Priority, From: PriorityChallenge, For: "packets that make the ends of a connection answer before a reset"},
	{Space: Priority, From: PriorityRefused, For: "packets that NetworkPolicies deny, between a lookup and the reject"},
	{Space: RouteProto, From: RouteProtocol, For: "all routes and ip rules of ours"},
	{Space: RouteTable, From: RouteTableUserspace, For: "mode userspace: everything is local"},
	{Space: RouteTable, From: RouteTableEgress, To: RouteTableEgress + RouteTablesEgress - 1, For: "`--egress-addresses`: to the node that announces one"},
	{Space: RulePriority, From: RulePriorityEgress, For: "`--egress-addresses`: marked packets to those tables"},
	{Space: RulePriority, From: RulePriorityUserspace, For: "mode userspace: marked packets to that table"},
	{Space: TCPPort, From: PortDNS, For: "cluster DNS", Shared: "it is DNS', on an address of its own"},
	{Space: TCPPort, From: PortBGP, For: "BGP: the speaker connects to it on routers and does not listen", Shared: "it is BGP's"},
	{Space: TCPPort, From: PortControllerMetrics, For: "`fairway controller`: metrics", Shared: "it is that of MetalLB's controller, in a pod"},
	{Space: TCPPort, From: PortDNSMetrics, For: "cluster DNS: metrics", Shared: "it is CoreDNS', in a pod"},
	{Space: TCPPort, From: PortMetrics, For: "metrics, `/proxyMode`", Shared: "it is kube-proxy's, which Fairway replaces"},
	{Space: TCPPort, From: PortHealthz, For: "`/healthz`, `/livez`", Shared: "it is kube-proxy's, which Fairway replaces"},
	{Space: TCPPort, From: PortSpeakerMetrics, For: "`fairway speaker`: metrics, `/healthz`"},
	{Space: TCPPort, From: PortEdgeMetrics, For: "`fairway edge`: metrics, `/healthz`, if it is configured"},
	{Space: TCPPort, From: PortUserspace, To: PortUserspace + PortsUserspace - 1, For: "mode userspace: listeners on loopback addresses; others if they are taken"},
	{Space: UDPPort, From: PortDNS, For: "cluster DNS", Shared: "it is DNS', on an address of its own"},
	{Space: UDPPort, From: PortBFD, For: "BFD over one hop, while a BGPPeer has a bfdProfile", Shared: "it is BFD's: a node has one program that speaks it"},
	{Space: UDPPort, From: PortBFDMultiHop, For: "BFD over several hops, while a BGPPeer has a bfdProfile", Shared: "it is BFD's: a node has one program that speaks it"},
	{Space: UDPPort, From: PortVXLAN, For: "`--pod-network vxlan`, `auto`: the tunnel, VNI 70", Shared: "it is VXLAN's; networks of other programs have other VNIs"},
	{Space: UDPPort, From: PortUserspace, To: PortUserspace + PortsUserspace - 1, For: "mode userspace: listeners on loopback addresses; others if they are taken"},
	{Space: UDPPort, From: PortHeartbeat, For: "heartbeats between speakers, and between edges"},
	{Space: UDPPort, From: PortWireGuard, For: "`--pod-network wireguard`: encrypted packets between nodes"},
}

// Others are the defaults of programs that are found on nodes, in the node's own network
// namespace.
var Others = []Number{
	{Space: PacketMark, From: 0x4000, Owner: "kube-proxy, kubelet", For: "masquerade"},
	{Space: PacketMark, From: 0x8000, Owner: "kubelet up to 1.27", For: "drop (KUBE-MARK-DROP)"},
	{Space: PacketMark, From: 0x2000, Owner: "portmap (CNI), Podman", For: "masquerade host ports"},
	{Space: PacketMark, From: 0x0f00, Owner: "Cilium", For: "where a packet comes from"},
	{Space: PacketMark, From: 0xffff0000, Owner: "Calico", For: "all of its decisions; Cilium: identities"},
	{Space: PacketMark, From: 0x00ff0000, Owner: "Tailscale", For: "0x40000 and 0x80000: its own traffic"},
	{Space: PacketMark, From: 0x80, Owner: "Amazon VPC CNI", For: "replies leave by the first interface"},
	{Space: PacketMark, From: 0xca6c, Mask: 0xffffffff, Owner: "wg-quick", For: "WireGuard's own packets: the whole mark"},
	{Space: ConnMark, From: 0x80, Owner: "Amazon VPC CNI", For: "replies leave by the first interface"},
	{Space: ConnMark, From: 0x00ff0000, Owner: "Tailscale", For: "a copy of its packet marks"},
	{Space: RouteProto, From: 2, To: 4, Owner: "the kernel, `ip route`", For: "kernel, boot, static"},
	{Space: RouteProto, From: 8, To: 18, Owner: "gated, FRR, BIRD, DHCP, keepalived", For: "routing daemons"},
	{Space: RouteProto, From: 42, Owner: "babeld", For: "its routes"},
	{Space: RouteProto, From: 80, Owner: "Calico", For: "its routes"},
	{Space: RouteProto, From: 99, Owner: "Open/R", For: "its routes"},
	{Space: RouteProto, From: 186, To: 192, Owner: "FRR", For: "BGP, IS-IS, OSPF, RIP, EIGRP"},
	{Space: RouteTable, From: 1, To: 250, Owner: "Calico, Amazon VPC CNI, Tailscale (52)", For: "WireGuard, interfaces"},
	{Space: RouteTable, From: 253, To: 255, Owner: "the kernel", For: "default, main, local"},
	{Space: RouteTable, From: 2004, To: 2005, Owner: "Cilium", For: "to its proxy, and back"},
	{Space: RouteTable, From: 51820, Owner: "wg-quick", For: "WireGuard"},
	{Space: RulePriority, From: 0, To: 111, Owner: "the kernel, Cilium, Calico", For: "local, to a proxy, WireGuard"},
	{Space: RulePriority, From: 512, Owner: "Amazon VPC CNI", For: "to pods"},
	{Space: RulePriority, From: 1024, Owner: "Amazon VPC CNI", For: "marked packets"},
	{Space: RulePriority, From: 1536, Owner: "Amazon VPC CNI", For: "from pods"},
	{Space: RulePriority, From: 5210, To: 5270, Owner: "Tailscale", For: "its own traffic"},
	{Space: RulePriority, From: 32764, To: 32767, Owner: "the kernel, wg-quick", For: "main, default, WireGuard"},
	{Space: TCPPort, From: 53, Owner: "systemd-resolved, NodeLocal DNSCache", For: "DNS, each on an address of its own"},
	{Space: TCPPort, From: 179, Owner: "BIRD, Calico, MetalLB, kube-router", For: "BGP"},
	{Space: TCPPort, From: 2379, To: 2381, Owner: "etcd", For: "clients, peers, metrics"},
	{Space: TCPPort, From: 4240, To: 4244, Owner: "Cilium", For: "health, Hubble"},
	{Space: TCPPort, From: 6443, Owner: "kube-apiserver", For: "the API"},
	{Space: TCPPort, From: 7472, Owner: "MetalLB", For: "metrics"},
	{Space: TCPPort, From: 9099, Owner: "Calico", For: "health"},
	{Space: TCPPort, From: 9100, Owner: "node-exporter", For: "metrics"},
	{Space: TCPPort, From: 9120, Owner: "MetalLB", For: "metrics of its controller"},
	{Space: TCPPort, From: 9153, Owner: "CoreDNS", For: "metrics"},
	{Space: TCPPort, From: 10248, Owner: "kubelet", For: "health"},
	{Space: TCPPort, From: 10249, Owner: "kube-proxy", For: "metrics"},
	{Space: TCPPort, From: 10250, To: 10255, Owner: "kubelet", For: "its API"},
	{Space: TCPPort, From: 10256, Owner: "kube-proxy", For: "health"},
	{Space: TCPPort, From: 10257, To: 10260, Owner: "kube-controller-manager, kube-scheduler, cloud-controller-manager", For: "health, metrics"},
	{Space: TCPPort, From: 30000, To: 32767, Owner: "Kubernetes", For: "NodePorts"},
	{Space: UDPPort, From: 3784, Owner: "BIRD, FRR, Calico", For: "BFD over one hop"},
	{Space: UDPPort, From: 4784, Owner: "BIRD, FRR, Calico", For: "BFD over several hops"},
	{Space: UDPPort, From: 53, Owner: "systemd-resolved, NodeLocal DNSCache", For: "DNS, each on an address of its own"},
	{Space: UDPPort, From: 4789, Owner: "Calico, Docker (overlay)", For: "VXLAN"},
	{Space: UDPPort, From: 7946, Owner: "MetalLB, Docker (overlay)", For: "members"},
	{Space: UDPPort, From: 8472, Owner: "flannel, Cilium", For: "VXLAN"},
	{Space: UDPPort, From: 30000, To: 32767, Owner: "Kubernetes", For: "NodePorts"},
	{Space: UDPPort, From: 41641, Owner: "Tailscale", For: "WireGuard"},
	{Space: UDPPort, From: 51820, To: 51821, Owner: "WireGuard, flannel, Calico", For: "WireGuard"},
}

// A Table is one of nf_tables' that we make, of family inet if nothing else is said.
type Table struct{ Name, For string }

// Tables are all.
var Tables = []Table{
	{TableNFTables, "mode nftables: Services"},
	{TableIPTables, "mode iptables: affinity, and ports of ClusterIPs that nothing serves; beside iptables' own `ip nat`, `ip filter`, …"},
	{TableIPVS, "mode ipvs: what leads to virtual servers"},
	{TableUserspace, "mode userspace: what leads to the sockets"},
	{TableReset, "connections that are being reset; is there only meanwhile"},
	{TableFence, "of family netdev: mutes the node for load-balancer addresses that it does not hold"},
	{TableFormer, "of families ip and ip6: what is in the middle of a connection through a load-balancer address that moved here goes to its former owner"},
	{TablePods, "`--pod-network`: drops what pods send from addresses that are not theirs, masquerades what they send out of the cluster, and keeps others out of the tunnel"},
	{TableHostPorts, "hostPorts on 127.0.0.1 and ::1, for clients with another address of the node; is there only meanwhile"},
	{TableEgress, "`--egress-addresses`: marks and translates what pods with an egress address send out of the cluster"},
	{TablePolicy, "`--network-policy`: NetworkPolicies of this node's pods"},
}

// A Hook is where one of our tables sees packets.
type Hook struct {
	Table, Type, Hook string
	Priority          int
}

// Hooks are all.
var Hooks = []Hook{
	{TableNFTables, "nat", "prerouting", -100},
	{TableNFTables, "nat", "output", -100},
	{TableNFTables, "filter", "forward", 0},
	{TableNFTables, "nat", "postrouting", 100},
	{TableNFTables, "filter", "prerouting", -90},
	{TableNFTables, "filter", "output", -90},
	{TableNFTables, "filter", "prerouting", HookAffinity},
	{TableNFTables, "filter", "output", HookAffinity},
	{TableIPTables, "filter", "prerouting", -101},
	{TableIPTables, "filter", "output", -101},
	{TableIPTables, "filter", "prerouting", -99},
	{TableIPTables, "filter", "output", -99},
	{TableIPTables, "filter", "input", 1},
	{TableIPTables, "filter", "forward", 1},
	{TableIPTables, "filter", "output", 1},
	{TableIPVS, "nat", "prerouting", -100},
	{TableIPVS, "nat", "output", -100},
	{TableIPVS, "filter", "prerouting", -99},
	{TableIPVS, "filter", "output", -99},
	{TableIPVS, "filter", "input", 101},
	{TableIPVS, "filter", "postrouting", 101},
	{TableIPVS, "filter", "forward", 0},
	{TableIPVS, "nat", "postrouting", 100},
	{TableUserspace, "filter", "prerouting", -150},
	{TableUserspace, "route", "output", -150},
	{TableUserspace, "nat", "prerouting", -101},
	{TableUserspace, "nat", "output", -101},
	{TableUserspace, "filter", "forward", 0},
	{TableReset, "filter", "prerouting", HookReset},
	{TableReset, "filter", "output", HookReset},
	{TableReset, "filter", "output", HookChallenge},
	{TablePods, "filter", "prerouting", HookSourceCheck},
	{TablePods, "nat", "postrouting", HookPods},
	{TableEgress, "filter", "prerouting", HookEgressMark},
	{TableEgress, "filter", "forward", 0},
	{TableEgress, "nat", "postrouting", HookEgress},
	{TableEgress, "filter", "postrouting", HookEgressUnmark},
	{TablePods, "filter", "prerouting", HookRaw},
	{TablePods, "filter", "output", HookRaw},
	{TablePods, "filter", "input", HookRaw},
	{TablePods, "filter", "forward", HookRaw},
	{TableHostPorts, "nat", "output", HookHostPorts},
	{TableFence, "filter", "egress", 0},
	{TableFormer, "filter", "prerouting", -150},
	{TablePolicy, "filter", "postrouting", HookPolicy},
	{TablePolicy, "filter", "input", HookPolicyInput},
	{TablePolicy, "filter", "forward", HookPolicy},
}
