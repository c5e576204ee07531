package service

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// loops are the endpoints of an Entry that may be frontends. A packet to such an endpoint would go round: two Services
// whose endpoints are each other's NodePorts turn one connection into thousands. Only slices that somebody wrote by
// hand have such endpoints. They are left out:
//
//   - an address in a ServiceCIDR, by Compile;
//   - a ClusterIP with one of its ports, a node's address with a NodePort, a load balancer's address with its port, and
//     an external IP of the same namespace: by the Builder, which knows the frontends of all Services.
//
// External IPs of other namespaces do not count, because anybody who may write a Service could take endpoints away from
// others with them. Endpoints that name their pod do not count either: a pod on a node's own network may use a port
// that somebody else chooses as NodePort. Somebody who writes a pod's name into a slice can make a loop, which ends
// with the hop limit of packets.
type loops struct {
	suspects []Key // endpoints that may be a frontend, sorted
	again    func(refused map[Key]struct{}) *Entry
	nodes    AddrSet
}

// loop reports whether endpoint i of a slice is a frontend. It notes endpoints that the Builder must decide about as
// suspects.
func (c *compilation) loop(at Key, s *Slice, i int) bool {
	addr := at.Addr.Addr()
	if anyContains(c.facts.Settings.ServiceCIDRs, addr) {
		return true
	}
	if _, ok := c.refused[at]; ok {
		return true
	}
	if c.suspicious(addr) && s.Pods.At(i) == "" {
		c.suspects = append(c.suspects, at)
	}
	return false
}

// suspicious reports whether an endpoint at an address can be a frontend: the address is a node's, or lies outside of
// the known pod ranges.
func (c *compilation) suspicious(a netip.Addr) bool {
	pods := c.facts.Settings.Pods
	known := slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() })
	return known && !anyContains(pods, a) || c.facts.NodeAddrs.Has(a)
}

// loops reports the endpoints that were left out, and gives the suspects to the Builder.
func (c *compilation) loops(eps []*Slice) {
	var leftOut []string
	for k := range c.refused {
		leftOut = append(leftOut, k.String())
	}
	for _, s := range eps {
		for i := range s.Endpoints {
			if a := s.Endpoints[i].Addr; anyContains(c.facts.Settings.ServiceCIDRs, a) {
				leftOut = append(leftOut, a.String())
			}
		}
	}
	if len(leftOut) > 0 {
		slices.Sort(leftOut)
		more := ""
		if leftOut = slices.Compact(leftOut); len(leftOut) > 5 {
			leftOut, more = leftOut[:5], fmt.Sprintf(" and %d more", len(leftOut)-5)
		}
		c.problem("EndpointRefused", "endpoints %q%s are left out: they are addresses of Services, to which packets would come back [name the pods, or use a selector]", leftOut, more)
	}
	if len(c.suspects) > 0 && c.refused == nil {
		svc, facts := c.svc, c.facts
		slices.SortFunc(c.suspects, Key.Compare)
		c.entry.loops = &loops{
			nodes:    facts.NodeAddrs,
			suspects: slices.Compact(c.suspects),
			again:    func(refused map[Key]struct{}) *Entry { return compile(svc, eps, facts, refused) },
		}
	}
}

// aims notes the keys of an entry's suspects in place of its predecessor's. Both may be nil.
func (b *Builder) aims(was, now *Entry) {
	for _, k := range was.suspects() {
		for _, k := range [...]Key{k, k.NodePort()} {
			delete(b.aimed[k.packed()], was.Name)
			if len(b.aimed[k.packed()]) == 0 {
				delete(b.aimed, k.packed())
			}
		}
	}
	for _, k := range now.suspects() {
		for _, k := range [...]Key{k, k.NodePort()} {
			if b.aimed[k.packed()] == nil {
				b.aimed[k.packed()] = map[api.Name]struct{}{}
			}
			b.aimed[k.packed()][now.Name] = struct{}{}
		}
	}
}

// markAimed marks the entries that have an endpoint at k.
func (b *Builder) markAimed(k packedKey) {
	for n := range b.aimed[k] {
		b.mark(n)
	}
}

func (e *Entry) suspects() []Key {
	if e == nil || e.loops == nil {
		return nil
	}
	return e.loops.suspects
}

// withoutLoops returns e without endpoints that are frontends.
func (b *Builder) withoutLoops(e *Entry) *Entry {
	var refused map[Key]struct{}
	for _, k := range e.suspects() {
		if !b.isFrontend(k, e) {
			continue
		}
		if refused == nil {
			refused = map[Key]struct{}{}
		}
		refused[k] = struct{}{}
	}
	if refused == nil {
		return e
	}
	kept := e.loops.again(refused)
	kept.loops, kept.refused = e.loops, refused
	return kept
}

// isFrontend reports whether an endpoint of e is a frontend.
func (b *Builder) isFrontend(k Key, e *Entry) bool {
	if e.loops.nodes.Has(k.Addr.Addr()) && b.keys.owners[k.NodePort().packed()] != nil {
		return true
	}
	o := b.keys.owners[k.packed()]
	return o != nil && (o.Name.Namespace == e.Name.Namespace || o.ownsClusterIP(k.Addr.Addr()) || o.balancers.Has(k.Addr.Addr()))
}
