package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/service"
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

// ruleBit is in every RuleID and in no class.
const ruleBit RuleID = 1 << 29

// A RuleName is where a rule stands: the Number-th of a policy's, from 0, of a direction.
type RuleName struct {
	Policy    service.Name
	Direction Direction
	Number    int
}

// String returns "default/web ingress[0]".
func (n RuleName) String() string {
	return fmt.Sprintf("%v %v[%d]", n.Policy, n.Direction, n.Number)
}

// A Segment is the ports of one protocol that a rule allows. Proto 0 stands for all protocols
// and all ports.
type Segment struct {
	Proto       service.Proto
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
	// Grants are sorted by protocol and port, and disjoint.
	Grants [2]map[Target][]Segment
	Rules  map[RuleID]RuleName
	// Sandboxes are those that the CNI plugin made on this node.
	Sandboxes map[netip.Addr]Sandbox
}

func newTable() *Table {
	t := &Table{Classes: map[netip.Addr]Class{}, Rules: map[RuleID]RuleName{}, Sandboxes: map[netip.Addr]Sandbox{}}
	for d := range t.Isolated {
		t.Isolated[d], t.Grants[d] = map[netip.Addr]bool{}, map[Target][]Segment{}
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
	Proto    service.Proto
	Port     uint16 // of Dst
}

// A Verdict is what one direction of one pod says.
type Verdict struct {
	Isolated bool
	Rule     RuleID // which allowed it; 0: none did
}

// Allows reports whether the packet passes.
func (v Verdict) Allows() bool { return !v.Isolated || v.Rule != 0 }

// A Decision is what becomes of a packet on this node: by the sender's egress and the
// receiver's ingress. A pod of another node is not isolated here; its own node decides.
type Decision struct{ Egress, Ingress Verdict }

// Allowed reports whether the packet passes on this node.
func (d Decision) Allowed() bool { return d.Egress.Allows() && d.Ingress.Allows() }

// Lookup decides about a packet that is neither from this node itself nor to it: those pass.
func Lookup(t *Table, p Packet) Decision {
	if t == nil || p.Src == p.Dst {
		return Decision{}
	}
	return Decision{
		Egress:  t.verdict(Egress, p.Src, p.Dst, p),
		Ingress: t.verdict(Ingress, p.Dst, p.Src, p),
	}
}

func (t *Table) verdict(d Direction, local, peer netip.Addr, p Packet) Verdict {
	if !t.Isolated[d][local] {
		return Verdict{}
	}
	v := Verdict{Isolated: true}
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

// compareSegments is the order of a target's segments.
func compareSegments(a, b Segment) int {
	return cmp.Or(cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.First, b.First))
}
