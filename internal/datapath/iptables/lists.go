package iptables

import (
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A list of very many endpoints is two levels of chains: a rule for each part of the list, and in the part a
// rule for each endpoint. A change writes one part and the first level, where iptables-nft-restore takes
// time that grows with the square of a chain's rules, and a packet passes fewer rules.
//
//	KUBE-SVC-list ─ chance of the part among those that are left ─→ KUBE-SVC-part ─ chance ─→ KUBE-SEP-…
//
// Where a part begins is decided by the address that begins it, not by its place in the list: so a change
// moves no other endpoint to another part.
const (
	partSize = 64  // endpoints of a part, on average
	maxPart  = 256 // and at most
)

// maxWhole is how many endpoints a list has that is one chain, as kube-proxy's are. It is a variable for the
// test of faults at each step, of which there are as many as there are rules.
var maxWhole = 256

// inParts reports whether a list has two levels. Where endpoints take turns they are counted in one
// chain, which has at most maxSlots rules; with affinity a packet is compared with all endpoints.
func inParts(f *service.Frontend, all []service.Endpoint) bool {
	return len(all) > maxWhole && f.Affinity == 0 && f.Balance != service.RoundRobin
}

// partsOf yields the parts of a list.
func partsOf(all []service.Endpoint) iter.Seq[[]service.Endpoint] {
	return func(yield func([]service.Endpoint) bool) {
		begin := 0
		for i := 1; i <= len(all); i++ {
			if i < len(all) && i-begin < maxPart && !beginsPart(all[i]) {
				continue
			}
			if !yield(all[begin:i]) {
				return
			}
			begin = i
		}
	}
}

// beginsPart reports whether a part begins with an endpoint.
func beginsPart(e service.Endpoint) bool {
	h := fnv.New32a()
	_, _ = h.Write(nftset.AddrPort(e.Addr)) // never fails
	x := h.Sum32()                          // its low bits depend on the last bytes alone
	x ^= x >> 16
	x *= 0x85ebca6b
	x ^= x >> 13
	return x%partSize == 0
}

// writeParts writes both levels of a list. What it writes for a part depends on nothing but the part.
func (s *builder) writeParts(f *service.Frontend, prefix, list string, all []service.Endpoint) {
	left := weight(all)
	var first []rule
	for part := range partsOf(all) {
		name := prefix + hash(s.group.name, s.group.proto, list, part[0].Addr.String())
		if !s.but[part[0].Addr] {
			s.writePart(f, name, list, part)
		}
		own := weight(part)
		to := rule{comment: f.Service.String(), jump: name}
		if own < left {
			to.matches = chance(own, left)
		}
		left -= own
		first = append(first, to)
	}
	s.write(chain{nat, list}, first)
}

// writePart writes one part of a list, and its endpoints.
func (s *builder) writePart(f *service.Frontend, name, list string, part []service.Endpoint) {
	var choices []rule
	for _, slot := range slotsOf(f.Balance, part) {
		one := s.choose(f, part[slot.endpoint], list)
		one.matches = slot.match
		choices = append(choices, one)
	}
	s.write(chain{nat, name}, choices)
}

// renderChange renders the frontends of one group in one family as they were and are. It may leave out what
// both have: the parts of a list that are the same, and their endpoints.
func (p *renderer) renderChange(is4 bool, was, is member) (old, next *fragment) {
	same := map[netip.AddrPort]bool{}
	from, to := onlyList(was.fronts), onlyList(is.fronts)
	if from != nil && to != nil && from.Internal.Local == to.Internal.Local && inParts(from, from.Internal.Endpoints) && inParts(to, to.Internal.Endpoints) {
		had := map[netip.AddrPort][]service.Endpoint{}
		for part := range partsOf(from.Internal.Endpoints) {
			had[part[0].Addr] = part
		}
		for part := range partsOf(to.Internal.Endpoints) {
			if slices.Equal(part, had[part[0].Addr]) {
				same[part[0].Addr] = true
			}
		}
	}
	return p.renderBut(is4, was, same), p.renderBut(is4, is, same)
}

// onlyList returns a frontend that has the same list of endpoints as all others of its group, for all
// clients; nil: there is none. Where a group has several lists, what one leaves another may need.
func onlyList(all []*service.Frontend) *service.Frontend {
	for _, f := range all {
		for _, r := range [...]*service.Route{f.Internal, f.External} {
			first := all[0].Internal
			if r.Local != first.Local || choiceText(f) != choiceText(all[0]) || !slices.Equal(r.Endpoints, first.Endpoints) {
				return nil
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// weight is what the endpoints of a list have together.
func weight(all []service.Endpoint) (sum uint32) {
	for _, e := range all {
		sum += uint32(lb.Weight(e))
	}
	return sum
}

// list is the chain that chooses one of a route's endpoints, of very many by way of chains of some each.
func (s *builder) list(f *service.Frontend, r *service.Route) string {
	prefix := svc
	if r.Local {
		prefix = svl
	}
	name, there := s.chainName(prefix, endpointsText(r.Endpoints)+" "+choiceText(f))
	if there {
		return name
	}
	if inParts(f, r.Endpoints) {
		s.writeParts(f, prefix, name, r.Endpoints)
		return name
	}
	var knownClients, choices []rule
	slots := slotsOf(f.Balance, r.Endpoints)
	for i, slot := range slots {
		one := s.choose(f, r.Endpoints[slot.endpoint], name)
		if f.Affinity > 0 && !slices.ContainsFunc(slots[:i], func(o choice) bool { return o.endpoint == slot.endpoint }) {
			known := one
			known.matches = fmt.Sprintf("-m connmark --mark %#x", markKnown|s.mark(one.jump))
			knownClients = append(knownClients, known)
		}
		one.matches = slot.match
		choices = append(choices, one)
	}
	s.write(chain{nat, name}, append(knownClients, choices...))
	return name
}

// choose is the rule of a list that leads to an endpoint, without its match.
func (s *builder) choose(f *service.Frontend, e service.Endpoint, list string) rule {
	arrow := " -> " + e.String()
	own := f.Service.String()
	return rule{comment: own[:min(len(own), maxComment-len(arrow))] + arrow, jump: s.endpoint(f, e, list)}
}

// A choice is one rule that chooses an endpoint, with its match.
type choice struct {
	endpoint int
	match    string
}

// maxSlots bounds the rules of a list that takes turns by weight.
const maxSlots = 256

// slotsOf says how endpoints are chosen. Each rule takes its share of what the rules
// before it have left.
func slotsOf(by service.Algorithm, all []service.Endpoint) (slots []choice) {
	if by == service.RoundRobin {
		turns := lb.Turns(lb.Shares(all, maxSlots))
		for i, e := range turns {
			slot := choice{endpoint: e}
			if left := len(turns) - i; left > 1 {
				slot.match = nthMatch(left)
			}
			slots = append(slots, slot)
		}
		return slots
	}
	left := weight(all)
	for i, e := range all {
		slot, own := choice{endpoint: i}, uint32(lb.Weight(e))
		if own < left {
			slot.match = chance(own, left)
		}
		left -= own
		slots = append(slots, slot)
	}
	return slots
}
