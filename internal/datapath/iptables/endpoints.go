package iptables

import (
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// weight returns the sum of the endpoints' weights.
func weight(all []service.Endpoint) (sum uint32) {
	for _, e := range all {
		sum += uint32(lb.Weight(e))
	}
	return sum
}

// list returns the chain KUBE-SVC- or KUBE-SVL- that chooses one of a route's endpoints.
func (s *builder) list(f *service.Frontend, r *service.Route) string {
	prefix := xtables.KubeSVC
	if r.Local {
		prefix = xtables.KubeSVL
	}
	name, exists := s.chainName(f, prefix, endpointsText(r.Endpoints)+" "+choiceText(f))
	if exists {
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
	s.write(natChain(name), append(knownClients, choices...))
	return name
}

// choose returns the rule of a list that leads to an endpoint, without its match. Its comment is data, like
// "default/web:http -> 10.244.1.2:80(local)*3". serviceIn parses the Service port in it, and translator.endpoint the
// endpoint's place and weight.
func (s *builder) choose(f *service.Frontend, e service.Endpoint, list string) rule {
	arrow := " -> " + e.String()
	own := f.Service.String()
	return rule{comment: own[:min(len(own), maxComment-len(arrow))] + arrow, jump: s.endpoint(f, e, list)}
}

// A choice is one rule that chooses an endpoint.
type choice struct {
	endpoint int    // its index in the list
	match    string // empty: the rule matches all packets
}

// maxSlots bounds the rules of a list with endpoints that take turns by weight.
const maxSlots = 256

// slotsOf returns the rules that choose endpoints. Each rule takes its share of the packets that the rules before it
// left.
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
