package iptables

import (
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// weight is what the endpoints of a list have together.
func weight(all []service.Endpoint) (sum uint32) {
	for _, e := range all {
		sum += uint32(lb.Weight(e))
	}
	return sum
}

// list is the chain that chooses one of a route's endpoints.
func (s *builder) list(f *service.Frontend, r *service.Route) string {
	prefix := svc
	if r.Local {
		prefix = svl
	}
	name, there := s.chainName(f, prefix, endpointsText(r.Endpoints)+" "+choiceText(f))
	if there {
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
