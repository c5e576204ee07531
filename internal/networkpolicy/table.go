package networkpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Class is the number of a class of addresses. The number is derived from the terms of the class, so that it is the
// same after a restart.
type Class uint32

// The classes of every address and of every pod. Classes of pods have the bit PodClass.
const (
	AnyAddr  Class = 1
	AnyPod   Class = 2
	PodClass Class = 1 << 31
)

// A RuleID is the number of a rule. Its bits say the verdict. No class has the same number.
type RuleID uint32

// ruleBit is in every RuleID and in no class. denyBit marks rules that deny, and ingressBit their direction.
const (
	ruleBit    RuleID = 1 << 29
	denyBit    RuleID = 1 << 30
	ingressBit RuleID = 1 << 28
)

// The verdict IDs of packets that match no rule: of pods that no NetworkPolicy isolates, and of isolated pods. A table
// has them only where a rule of a ClusterNetworkPolicy would decide otherwise.
const (
	Unmatched       RuleID = ruleBit | 1
	IsolatedEgress  RuleID = denyBit | ruleBit | 1
	IsolatedIngress RuleID = denyBit | ruleBit | ingressBit | 1
)

// Denies reports whether the rule denies.
func (id RuleID) Denies() bool { return id&denyBit != 0 }

// A RuleName is the place of a rule: its policy, direction and number from 0. For a ClusterNetworkPolicy it has also
// the tier, the action and the title.
type RuleName struct {
	Policy    api.Name
	Direction Direction
	Number    int
	Tier      Tier
	Action    Action
	Title     string // the author's name for the rule; may be empty
}

// The numbers of the rules Unmatched, IsolatedEgress and IsolatedIngress.
const unmatched, isolated = -1, -2

// String returns "default/web ingress[0]", or "Admin web ingress[0] Deny", with the rule's title.
func (n RuleName) String() string {
	switch {
	case n.Number == unmatched:
		return "no rule"
	case n.Number == isolated:
		return "isolated " + n.Direction.String()
	case n.Tier == Namespaced:
		return fmt.Sprintf("%v %v[%d]", n.Policy, n.Direction, n.Number)
	}
	text := fmt.Sprintf("%v %s %v[%d] %v", n.Tier, n.Policy.Name, n.Direction, n.Number, n.Action)
	if n.Title != "" {
		text += fmt.Sprintf(" (%s)", n.Title)
	}
	return text
}

// A Segment is the ports of one protocol about which a rule decides. Proto 0 stands for all protocols
// and all ports.
type Segment struct {
	Proto       api.Proto
	First, Last uint16
	Rule        RuleID
}

// A Target is a local pod and a class of its peers.
type Target struct {
	Local netip.Addr
	Peer  Class
}

// A PodPort is a port of a pod's address.
type PodPort struct {
	Addr  netip.Addr
	Proto api.Proto
	Port  uint16
}

// A Range is a range of addresses of one family. To is included.
type Range struct {
	From, To netip.Addr
	Class    Class
}

// A Table is the wanted state of a node. A nil Table allows everything.
type Table struct {
	// Classes has the addresses of all pods. Networks has the other addresses in networks or of nodes that
	// ClusterNetworkPolicies list, sorted and disjoint. Ports has named ports of pods that egress rules use.
	Classes  map[netip.Addr]Class
	Networks []Range
	Ports    map[PodPort]Class
	// Views has the pods of this node whose NetworkPolicies list blocks. The longest prefix of a peer in the view has
	// the class of the peer. It counts if the other classes of the peer do not decide.
	Views    [2]map[netip.Addr]View
	Prefixes map[ViewPrefix]Class
	// Isolated has the pods of this node that a NetworkPolicy isolates, and pods that are not known yet.
	Isolated [2]map[netip.Addr]bool
	// Cluster has the pods of this node for which a ClusterNetworkPolicy has rules. Pods that are not known yet are
	// included if a ClusterNetworkPolicy has egress rules.
	Cluster [2]map[netip.Addr]bool
	// Grants are sorted by protocol and port, and disjoint. A segment of all protocols comes last, and decides about
	// the ports without another segment.
	Grants [2]map[Target][]Segment
	Rules  map[RuleID]RuleName
	// Sandboxes are the pods that the CNI plugin made on this node, by address.
	Sandboxes map[netip.Addr]Sandbox
}

func newTable() *Table {
	t := &Table{Classes: map[netip.Addr]Class{}, Rules: map[RuleID]RuleName{}, Sandboxes: map[netip.Addr]Sandbox{},
		Ports: map[PodPort]Class{}, Prefixes: map[ViewPrefix]Class{}}
	for d := range t.Isolated {
		t.Isolated[d], t.Cluster[d], t.Grants[d] = map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[Target][]Segment{}
		t.Views[d] = map[netip.Addr]View{}
	}
	return t
}

// ClassOf returns the class of an address.
func (t *Table) ClassOf(a netip.Addr) Class {
	if c, ok := t.Classes[a]; ok {
		return c
	}
	i, found := slices.BinarySearchFunc(t.Networks, a, func(r Range, a netip.Addr) int { return r.From.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && t.Networks[i].To.BitLen() == a.BitLen() && t.Networks[i].To.Compare(a) >= 0 {
		return t.Networks[i].Class
	}
	return AnyAddr
}

// A Packet is the first packet of a connection, after DNAT and before SNAT. Proto may be any IP protocol. Only TCP, UDP
// and SCTP have ports.
type Packet struct {
	Src, Dst netip.Addr
	Proto    api.Proto
	Port     uint16 // of Dst
	// ToNode: Dst is an address of this node. No NetworkPolicy isolates pods from their node.
	ToNode bool
}

// A Verdict is the decision of one direction of one pod.
type Verdict struct {
	// Isolated: a NetworkPolicy isolates the pod, and does not exempt the peer.
	Isolated bool
	Rule     RuleID // the rule that decided; 0: none did
}

// Allows reports whether the packet passes.
func (v Verdict) Allows() bool {
	if v.Rule != 0 {
		return !v.Rule.Denies()
	}
	return !v.Isolated
}

// A Decision is the verdict about a packet on this node: the sender's egress and the receiver's ingress. Pods of other
// nodes are not judged here, because their own nodes do so.
type Decision struct{ Egress, Ingress Verdict }

// Allowed reports whether the packet passes on this node.
func (d Decision) Allowed() bool { return d.Egress.Allows() && d.Ingress.Allows() }

// Lookup decides about a packet that this node does not send itself, because the node's own packets always pass. A
// packet of a pod to its own address without a Service never leaves the pod.
func Lookup(t *Table, p Packet) Decision {
	if t == nil {
		return Decision{}
	}
	return Decision{
		Egress:  t.verdict(Egress, p.Src, p.Dst, p),
		Ingress: t.verdict(Ingress, p.Dst, p.Src, p),
	}
}

func (t *Table) verdict(d Direction, local, peer netip.Addr, p Packet) (v Verdict) {
	v.Isolated = t.Isolated[d][local]
	if !v.Isolated && !t.Cluster[d][local] {
		return v
	}
	defer func() {
		if p.ToNode || p.Src == p.Dst {
			v.exempt()
		}
	}()
	class := t.ClassOf(peer)
	rungs := []Class{class, AnyPod, AnyAddr}
	if class&PodClass == 0 {
		rungs = []Class{class, AnyAddr}
	}
	if named := t.Ports[PodPort{peer, p.Proto, p.Port}]; d == Egress && named != 0 {
		rungs = append([]Class{named}, rungs...)
	}
	for _, c := range rungs {
		if v.Rule = t.rule(d, local, c, p); v.Rule != 0 {
			break
		}
	}
	if view := t.Views[d][local]; view != 0 && (v.Rule == 0 || v.Rule == IsolatedEgress || v.Rule == IsolatedIngress) {
		v.Rule = cmp.Or(t.rule(d, local, t.blockClass(view, peer), p), v.Rule)
	}
	return v
}

// rule returns the rule that decides about a packet in a class, or 0.
func (t *Table) rule(d Direction, local netip.Addr, c Class, p Packet) RuleID {
	for _, s := range t.Grants[d][Target{local, c}] {
		if s.Proto == 0 || s.Proto == p.Proto && s.First <= p.Port && p.Port <= s.Last {
			return s.Rule
		}
	}
	return 0
}

// blockClass returns the class of an address in a view, or 0.
func (t *Table) blockClass(v View, a netip.Addr) Class {
	for _, bits := range v.Lengths(a.Is4()) {
		if c := t.Prefixes[ViewPrefix{v, netip.PrefixFrom(a, bits).Masked()}]; c != 0 {
			return c
		}
	}
	return 0
}

// RuleOf returns the name of the rule of a verdict. The zero name: no rule decided.
func (t *Table) RuleOf(v Verdict) RuleName {
	if t == nil {
		return RuleName{}
	}
	return t.Rules[v.Rule]
}

// exempt lifts isolation, which never applies between a pod and itself or its node.
func (v *Verdict) exempt() {
	v.Isolated = false
	if v.Rule == IsolatedEgress || v.Rule == IsolatedIngress {
		v.Rule = 0
	}
}

// compareSegments compares segments by protocol and port.
func compareSegments(a, b Segment) int {
	return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.First, b.First))
}
