package nftables

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// family is the suffix of the sets for an address family.
func family(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

func number[N ~uint32](n N) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

// An element is an element of a set or a map, as the kernel has it.
type element struct{ set, key, last, data, comment string }

// id identifies an element in its set. No two elements have the same id.
func (e element) id() [3]string { return [3]string{e.set, e.key, e.last} }

// write returns the write that adds or deletes the element.
func (e element) write(add bool) nft.Write {
	w := nft.Write{Set: e.set, Key: []byte(e.key), Add: add, Del: !add, Comment: e.comment}
	if e.last != "" {
		w.Last = []byte(e.last)
	}
	switch e.set {
	case "rejections":
		w.Goto = "refused"
	case "block-decisions":
		w.Goto = "allowed"
	case "decisions":
		w.Goto = "allowed"
		if networkpolicy.RuleID(binary.NativeEndian.Uint32([]byte(e.key))).Denies() {
			w.Goto = "denied" // every rule that denies leads to the chain denied, which also counts and rejects
		}
	default:
		if e.data != "" {
			w.Data = []byte(e.data)
		}
	}
	return w
}

func classElement(a netip.Addr, k networkpolicy.Class) element {
	return element{set: "pod-classes" + family(a), key: string(a.AsSlice()), data: string(number(k))}
}

func portElement(p networkpolicy.PodPort, k networkpolicy.Class) element {
	return element{set: "port-classes" + family(p.Addr), key: portKey(p.Addr.AsSlice(), p.Proto, p.Port), data: string(number(k))}
}

func viewElement(d networkpolicy.Direction, a netip.Addr, v networkpolicy.View) element {
	return element{set: "views-" + d.String() + family(a), key: string(a.AsSlice()), data: string(number(v))}
}

func prefixElement(p networkpolicy.ViewPrefix, k networkpolicy.Class) element {
	key := append(p.Prefix.Addr().AsSlice(), number(p.View|networkpolicy.View(p.Prefix.Bits()))...)
	return element{set: "block-classes" + family(p.Prefix.Addr()), key: string(key), data: string(number(k))}
}

func isolatedElement(d networkpolicy.Direction, a netip.Addr) element {
	return element{set: "isolated-" + d.String() + family(a), key: string(a.AsSlice())}
}

func clusterElement(d networkpolicy.Direction, a netip.Addr) element {
	return element{set: "cluster-" + d.String() + family(a), key: string(a.AsSlice())}
}

// selfElement lets a pod talk with itself through a Service, isolated or not.
func selfElement(a netip.Addr) element {
	return element{set: "self" + family(a), key: string(a.AsSlice()) + string(a.AsSlice())}
}

// grantElement returns the element for a segment of a target.
func (t *Table) grantElement(d networkpolicy.Direction, to networkpolicy.Target, s networkpolicy.Segment) element {
	e := element{set: d.String() + family(to.Local), data: string(number(s.Rule))}
	local := to.Local.AsSlice()
	switch {
	case s.Proto == 0:
		e.set = d.String() + "-all" + family(to.Local)
		e.key = string(append(local, number(to.Peer)...))
	case s.First == s.Last:
		e.key = portKey(append(local, number(to.Peer)...), s.Proto, s.First)
	default:
		e.set = d.String() + "-ranges" + family(to.Local)
		local = t.rangeOrder.AppendUint32(local, uint32(to.Peer))
		e.key, e.last = portKey(local, s.Proto, s.First), portKey(local, s.Proto, s.Last)
	}
	return e
}

func portKey(key []byte, proto api.Proto, port uint16) string {
	return string(key) + string([]byte{byte(proto), 0, 0, 0, byte(port >> 8), byte(port), 0, 0})
}

// maxComment is the length of a comment, in bytes, that every kernel keeps.
const maxComment = 192

// ruleElements returns the elements of a rule: in decisions, and in block-decisions if the rule can have blocks in views.
func ruleElements(id networkpolicy.RuleID, n networkpolicy.RuleName) []element {
	text := n.String()
	e := element{set: "decisions", key: string(number(id)), comment: text[:min(len(text), maxComment)]}
	if n.Tier != networkpolicy.Namespaced || id.Denies() {
		return []element{e}
	}
	return []element{e, {set: "block-decisions", key: e.key, comment: e.comment}}
}

// sandboxElement records the pod of an address. It leaves out a pod name that is too long, and the next agent finds the
// pod by its UID.
func sandboxElement(a netip.Addr, s networkpolicy.Sandbox) element {
	text := s.Pod.String() + " " + s.UID + " " + s.Container
	if len(text) > maxComment {
		text = "/ " + s.UID + " " + s.Container
	}
	return element{set: "sandboxes" + family(a), key: string(a.AsSlice()), comment: text}
}

func parseSandbox(comment string) networkpolicy.Sandbox {
	fields := append(strings.Split(comment, " "), "", "", "")
	namespace, pod, _ := strings.Cut(fields[0], "/")
	return networkpolicy.Sandbox{Pod: api.Name{Namespace: namespace, Name: pod}, UID: fields[1], Container: fields[2]}
}

// wantedElements calls f for all elements of a table except networks, in the order of writing: first elements that let
// packets pass, then elements that stop them.
func (t *Table) wantedElements(want *networkpolicy.Table, f func(element)) {
	if t.Reject {
		for d := range want.Isolated {
			f(element{set: "rejections", key: string(number(uint32(firstDenial + d)))})
		}
	}
	for id, n := range want.Rules {
		for _, e := range ruleElements(id, n) {
			f(e)
		}
	}
	for a, s := range want.Sandboxes {
		f(sandboxElement(a, s))
	}
	for d := range want.Grants {
		for target, segments := range want.Grants[d] {
			for _, s := range segments {
				f(t.grantElement(networkpolicy.Direction(d), target, s))
			}
		}
	}
	for a, k := range want.Classes {
		f(classElement(a, k))
	}
	for p, k := range want.Ports {
		f(portElement(p, k))
	}
	for p, k := range want.Prefixes {
		f(prefixElement(p, k))
	}
	for d := range want.Views {
		for a, v := range want.Views[d] {
			f(viewElement(networkpolicy.Direction(d), a, v))
		}
	}
	for a := range want.Isolated[networkpolicy.Egress] {
		f(selfElement(a))
	}
	for a := range want.Isolated[networkpolicy.Ingress] {
		if !want.Isolated[networkpolicy.Egress][a] {
			f(selfElement(a))
		}
	}
	for d := range want.Isolated {
		for a := range want.Isolated[d] {
			f(isolatedElement(networkpolicy.Direction(d), a))
		}
		for a := range want.Cluster[d] {
			f(clusterElement(networkpolicy.Direction(d), a))
		}
	}
}
