package networkpolicy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Class is the number of a class of addresses. It is made from what the class is, so that
// it is the same after a restart.
type Class uint32

// The classes that stand for many: every address, and every pod. Classes of pods have the
// bit PodClass.
const (
	AnyAddr  Class = 1
	AnyPod   Class = 2
	PodClass Class = 1 << 31
)

// A RuleID is the number of a rule, and the verdict of what it decides. No class has it.
type RuleID uint32

// ruleBit is in every RuleID and in no class; denyBit in those that deny, whose ingressBit tells
// their direction.
const (
	ruleBit    RuleID = 1 << 29
	denyBit    RuleID = 1 << 30
	ingressBit RuleID = 1 << 28
)

// The numbers of what decides where no rule does: a NetworkPolicy isolates, or none does. They are
// written only where a rule of a ClusterNetworkPolicy would decide otherwise.
const (
	Unmatched       RuleID = ruleBit | 1
	IsolatedEgress  RuleID = denyBit | ruleBit | 1
	IsolatedIngress RuleID = denyBit | ruleBit | ingressBit | 1
)

// Denies reports whether it is the number of a rule that denies.
func (id RuleID) Denies() bool { return id&denyBit != 0 }

// A RuleName is where a rule stands: the Number-th of a policy's, from 0, of a direction.
// A ClusterNetworkPolicy's says also what it does.
type RuleName struct {
	Policy    api.Name
	Direction Direction
	Number    int
	Tier      Tier
	Action    Action
	Title     string // what its author calls it; empty: nothing
}

// The Numbers of Unmatched and the Isolated ones.
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

// A Target is a local pod and those who may talk with it.
type Target struct {
	Local netip.Addr
	Peer  Class
}

// A Range is addresses of one family from one up to and with another.
type Range struct {
	From, To netip.Addr
	Class    Class
}

// A Table is what a node enforces. A nil Table allows everything.
type Table struct {
	// Classes are those of all pods' addresses, and Blocks those of all other addresses that
	// have one, sorted and disjoint.
	Classes map[netip.Addr]Class
	Blocks  []Range
	// Isolated are this node's pods that a policy isolates, and those that are not known yet.
	Isolated [2]map[netip.Addr]bool
	// Cluster are this node's pods for which a ClusterNetworkPolicy has rules, and those that are
	// not known yet, if one has rules for what pods send.
	Cluster [2]map[netip.Addr]bool
	// Grants are sorted by protocol and port, and disjoint; one of all protocols comes last, and
	// decides about what no other has.
	Grants [2]map[Target][]Segment
	Rules  map[RuleID]RuleName
	// Sandboxes are those that the CNI plugin made on this node.
	Sandboxes map[netip.Addr]Sandbox
}

func newTable() *Table {
	t := &Table{Classes: map[netip.Addr]Class{}, Rules: map[RuleID]RuleName{}, Sandboxes: map[netip.Addr]Sandbox{}}
	for d := range t.Isolated {
		t.Isolated[d], t.Cluster[d], t.Grants[d] = map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[Target][]Segment{}
	}
	return t
}

// ClassOf returns the class of an address.
func (t *Table) ClassOf(a netip.Addr) Class {
	if c, ok := t.Classes[a]; ok {
		return c
	}
	i, found := slices.BinarySearchFunc(t.Blocks, a, func(r Range, a netip.Addr) int { return r.From.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && t.Blocks[i].To.BitLen() == a.BitLen() && t.Blocks[i].To.Compare(a) >= 0 {
		return t.Blocks[i].Class
	}
	return AnyAddr
}

// A Packet is the first of a connection, behind the translation of its destination and before
// that of its source. Proto may be any of IP's; only TCP, UDP and SCTP have ports.
type Packet struct {
	Src, Dst netip.Addr
	Proto    api.Proto
	Port     uint16 // of Dst
	// ToNode: Dst is this node's own. No NetworkPolicy isolates pods from their node.
	ToNode bool
}

// A Verdict is what one direction of one pod says.
type Verdict struct {
	// Isolated: a NetworkPolicy isolates the pod, and not from this peer only.
	Isolated bool
	Rule     RuleID // which decided; 0: none did
}

// Allows reports whether the packet passes.
func (v Verdict) Allows() bool {
	if v.Rule != 0 {
		return !v.Rule.Denies()
	}
	return !v.Isolated
}

// A Decision is what becomes of a packet on this node: by the sender's egress and the
// receiver's ingress. A pod of another node is not isolated here; its own node decides.
type Decision struct{ Egress, Ingress Verdict }

// Allowed reports whether the packet passes on this node.
func (d Decision) Allowed() bool { return d.Egress.Allows() && d.Ingress.Allows() }

// Lookup decides about a packet that is not from this node itself: those pass. What a pod sends
// to its own address without a Service never leaves it.
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
	for _, c := range rungs {
		for _, s := range t.Grants[d][Target{local, c}] {
			if s.Proto == 0 || s.Proto == p.Proto && s.First <= p.Port && p.Port <= s.Last {
				v.Rule = s.Rule
				return v
			}
		}
	}
	return v
}

// RuleOf is where the rule of a verdict stands; the zero name: no rule decided.
func (t *Table) RuleOf(v Verdict) RuleName {
	if t == nil {
		return RuleName{}
	}
	return t.Rules[v.Rule]
}

// exempt is what isolation means for the pod itself and for its node.
func (v *Verdict) exempt() {
	v.Isolated = false
	if v.Rule == IsolatedEgress || v.Rule == IsolatedIngress {
		v.Rule = 0
	}
}

// compareSegments is the order of a target's segments.
func compareSegments(a, b Segment) int {
	return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.First, b.First))
}
