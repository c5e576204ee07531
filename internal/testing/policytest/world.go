// Package policytest makes random clusters of pods, namespaces and NetworkPolicies. The tests of the compiler, of the
// kernel's rules, and of other programs that serve as an oracle use them.
//
//	World ── Step ──→ Pods, Namespaces, Policies ──→ what is tested
//
// The vocabulary is small, so that selectors, blocks and port names match often. The clusters depend only on the seed.
package policytest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// A World makes random objects from a small vocabulary, so that they match often.
type World struct {
	*rand.Rand
	networkpolicy.Cluster
	// Addrs are the addresses of pods and blocks. FirstPort is the lowest port.
	Addrs     []netip.Addr
	FirstPort uint16
	// Place says where a pod is. A pod without addresses is not made. It may be nil.
	Place func(pod api.Name) (node string, addrs []netip.Addr)
	// Tiers adds ClusterNetworkPolicies and nodes.
	Tiers  bool
	serial int
}

// New returns an empty World.
func New(r *rand.Rand) *World {
	return &World{Rand: r, Addrs: someAddrs(), Cluster: *networkpolicy.NewCluster()}
}

func pick[T any](w *World, all ...T) T { return all[w.IntN(len(all))] }

func (w *World) labels() map[string]string {
	out := map[string]string{}
	for _, k := range []string{"app", "tier"} {
		if w.IntN(3) > 0 {
			out[k] = pick(w, "a", "b", "c")
		}
	}
	return out
}

func (w *World) selector() api.Selector {
	var s api.Selector
	for range w.IntN(3) {
		r := api.Requirement{Key: pick(w, "app", "tier"), Op: pick(w, api.In, api.In, api.In, api.NotIn, api.Exists, api.DoesNotExist)}
		if r.Op == api.In || r.Op == api.NotIn {
			r.Values = pick(w, []string{"a"}, []string{"b"}, []string{"a", "b"})
		}
		s.Requirements = append(s.Requirements, r)
	}
	return s
}

func (w *World) namespace() string { return pick(w, "x", "y", "z") }

// Addr returns one of the world's addresses.
func (w *World) Addr() netip.Addr { return pick(w, w.Addrs...) }

// someAddrs are the default addresses.
func someAddrs() (all []netip.Addr) {
	for n := range byte(12) {
		all = append(all, netip.AddrFrom4([4]byte{10, 0, n / 4, n % 4}), netip.MustParseAddr(fmt.Sprintf("fd00::%d:%d", n/4, n%4)))
	}
	return all
}

func (w *World) block() *networkpolicy.Block {
	bits := pick(w, 0, 16, 24, 30, 31, 32)
	a := w.Addr()
	if a.Is6() {
		bits = pick(w, 0, 64, 112, 126, 128)
	}
	b := &networkpolicy.Block{CIDR: netip.PrefixFrom(a, bits).Masked()}
	for range w.IntN(3) {
		e := netip.PrefixFrom(w.Addr(), a.BitLen()-w.IntN(3))
		if e.IsValid() && b.CIDR.Contains(e.Addr()) && e.Bits() > bits {
			b.Except = append(b.Except, e.Masked())
		}
	}
	return b
}

func (w *World) rule() networkpolicy.Rule {
	var r networkpolicy.Rule
	for range w.IntN(3) {
		var p networkpolicy.Peer
		switch w.IntN(4) {
		case 0:
			p.Block = w.block()
		case 1:
			s := w.selector()
			p.Pods = &s
		case 2:
			s := w.selector()
			p.Namespaces = &s
		default:
			s, n := w.selector(), w.selector()
			p.Pods, p.Namespaces = &s, &n
		}
		r.Peers = append(r.Peers, p)
	}
	for range w.IntN(3) {
		p := networkpolicy.Port{Proto: pick(w, api.TCP, api.TCP, api.UDP, api.SCTP)}
		switch w.IntN(4) {
		case 0:
			p.Name = pick(w, "http", "dns")
		case 1:
			p.First = w.FirstPort + uint16(w.IntN(4))
			p.Last = p.First + uint16(w.IntN(4))
		case 2:
			p.Last = 65535
		default:
			p.First = w.FirstPort + uint16(w.IntN(6))
			p.Last = p.First
		}
		r.Ports = append(r.Ports, p)
	}
	r.NoPeer = len(r.Peers) == 0 && w.IntN(20) == 0
	r.NoPort = len(r.Ports) == 0 && w.IntN(20) == 0
	return r
}

func (w *World) policy(name api.Name) *networkpolicy.Policy {
	p := &networkpolicy.Policy{Name: name, Selector: w.selector(), Isolates: [2]bool{w.IntN(2) == 0, w.IntN(3) > 0}}
	for d := range p.Rules {
		for range w.IntN(4) {
			p.Rules[d] = append(p.Rules[d], w.rule())
		}
	}
	return p
}

func (w *World) pod(name api.Name) *api.Pod {
	w.serial++
	p := &api.Pod{Name: name, UID: fmt.Sprint(w.serial), Labels: w.labels(), Created: time.Unix(int64(w.serial), 0)}
	if w.Place != nil {
		p.Node, p.Addrs = w.Place(name)
	} else {
		p.Node, p.Addrs = pick(w, "here", "there"), w.freeAddrs(name)
	}
	for _, n := range []string{"http", "dns"} {
		if w.IntN(2) == 0 {
			p.Ports = append(p.Ports, api.NamedPort{Name: n, Proto: pick(w, api.TCP, api.UDP), Number: w.FirstPort + uint16(w.IntN(5))})
		}
	}
	return p
}

// freeAddrs returns up to two addresses that no other pod has.
func (w *World) freeAddrs(name api.Name) (free []netip.Addr) {
	for range w.IntN(3) {
		a := w.Addr()
		taken := slices.Contains(free, a)
		for _, o := range w.Pods {
			taken = taken || o.Name != name && slices.Contains(o.Addrs, a)
		}
		if !taken {
			free = append(free, a)
		}
	}
	return free
}

// Compiler returns a Compiler for a node that starts now, with the present objects.
func Compiler(node string, all *networkpolicy.Cluster) *networkpolicy.Compiler {
	c := networkpolicy.New(node)
	for _, n := range slices.SortedFunc(maps.Keys(all.Policies), api.Name.Compare) {
		c.SetPolicy(n, all.Policies[n])
	}
	for n, p := range all.Pods {
		c.SetPod(n, p)
	}
	for n, p := range all.ClusterPolicies {
		c.SetClusterPolicy(n, p)
	}
	for n, o := range all.Nodes {
		c.SetNode(n, o)
	}
	for n, s := range all.Namespaces {
		c.SetNamespace(n, s)
	}
	return c
}

// Step changes one object, and tells the Compilers.
func (w *World) Step(to ...*networkpolicy.Compiler) {
	if w.Tiers && w.IntN(4) == 0 {
		w.stepTiers(to)
		return
	}
	switch w.IntN(6) {
	case 0:
		n := w.namespace()
		w.Namespaces[n] = &api.Namespace{Name: n, Labels: w.labels()}
		if w.IntN(3) == 0 {
			delete(w.Namespaces, n)
		}
		for _, c := range to {
			c.SetNamespace(n, w.Namespaces[n])
		}
	case 1, 2:
		n := api.Name{Namespace: w.namespace(), Name: pick(w, "p", "q", "r")}
		w.Policies[n] = w.policy(n)
		if w.IntN(3) == 0 {
			delete(w.Policies, n)
		}
		for _, c := range to {
			c.SetPolicy(n, w.Policies[n])
		}
	default:
		n := api.Name{Namespace: w.namespace(), Name: pick(w, "1", "2", "3", "4")}
		pod := w.pod(n)
		if w.Pods[n] = pod; w.IntN(4) == 0 || w.Place != nil && len(pod.Addrs) == 0 {
			delete(w.Pods, n)
		}
		for _, c := range to {
			c.SetPod(n, w.Pods[n])
		}
	}
}

// Peering returns a packet as one of its ends sees it, and the pod of that end. The pod is nil if the end is no pod.
func (w *World) Peering(p networkpolicy.Packet, d networkpolicy.Direction) *networkpolicy.Peering {
	local, peer := p.Src, p.Dst
	if d == networkpolicy.Ingress {
		local, peer = p.Dst, p.Src
	}
	out := &networkpolicy.Peering{Direction: d, Peer: peer, Proto: p.Proto, Port: p.Port, Exempt: p.ToNode || p.Src == p.Dst}
	for _, pod := range w.Pods {
		if slices.Contains(pod.Addrs, local) {
			out.Pod = pod
		}
		if slices.Contains(pod.Addrs, peer) {
			out.PeerPod = pod
		}
	}
	if out.Pod == nil {
		return nil
	}
	return out
}
