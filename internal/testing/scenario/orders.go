package scenario

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/service"
)

// Orders yields sequences of events that create the scenario's objects, each with a name. The last event of each object
// is equal in all sequences, so the last table must be equal too.
func (s *Scenario) Orders(rng *rand.Rand) iter.Seq2[string, []Event] {
	base := s.events()
	return func(yield func(string, []Event) bool) {
		for order, events := range permutations(base, rng) {
			for _, way := range s.histories(rng) {
				events := way.expand(events)
				name := order + ", " + way.name
				if !yield(name+", one table", events) || !yield(name+", a table each", flushEach(events)) {
					return
				}
			}
		}
	}
}

// events returns the objects as they are in the file.
func (s *Scenario) events() []Event {
	var out []Event
	for _, svc := range s.Services {
		out = append(out, Event{Service: svc})
	}
	for _, slice := range s.Slices {
		out = append(out, Event{Slice: slice})
	}
	for _, p := range s.HostPods {
		out = append(out, Event{HostPod: p})
	}
	return out
}

func permutations(base []Event, rng *rand.Rand) iter.Seq2[string, []Event] {
	return func(yield func(string, []Event) bool) {
		backward := slices.Clone(base)
		slices.Reverse(backward)
		if !yield("forward", base) || !yield("backward", backward) {
			return
		}
		for i := range 3 {
			mixed := slices.Clone(base)
			rng.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
			if !yield(fmt.Sprintf("shuffle %d", i), mixed) {
				return
			}
		}
	}
}

// A history is a sequence of events of objects before their last state.
type history struct {
	name   string
	expand func([]Event) []Event
}

// histories is a list and not a map, so that a rng with a fixed seed makes fixed sequences.
func (s *Scenario) histories(rng *rand.Rand) []history {
	each := func(f func(Event) []Event) func([]Event) []Event {
		return func(events []Event) []Event {
			var out []Event
			for _, e := range events {
				out = append(out, f(e)...)
			}
			return out
		}
	}
	elsewhere, here := s.Facts, s.Facts
	elsewhere.Zone, elsewhere.Name, elsewhere.MasqueradeAll = "elsewhere", "another", !here.MasqueradeAll
	gone := func(e Event) []Event { return []Event{e.deletion()} }
	other := func(e Event) []Event { return []Event{e.altered(rng)} }
	return []history{
		{"once", slices.Clone[[]Event]},
		{"each twice", each(func(e Event) []Event { return []Event{e, e} })},
		{"all twice", func(events []Event) []Event { return slices.Concat(events, events) }},
		{"removed and again", each(func(e Event) []Event { return []Event{e, e.deletion(), e} })},
		{"removed before", each(func(e Event) []Event { return []Event{e.deletion(), e} })},
		{"emptied and again", each(func(e Event) []Event { return []Event{e, e.emptied(), e} })},
		{"another before", each(func(e Event) []Event { return []Event{e.altered(rng), e} })},
		{"all others before", func(events []Event) []Event { return slices.Concat(each(other)(events), events) }},
		{"from elsewhere before", func(events []Event) []Event {
			return slices.Concat([]Event{{Facts: &elsewhere}}, events, []Event{{Facts: &here}})
		}},
		{"all removed and again", func(events []Event) []Event { return slices.Concat(events, each(gone)(events), events) }},
	}
}

func flushEach(events []Event) []Event {
	var out []Event
	for _, e := range events {
		out = append(out, e, Event{Flush: true})
	}
	return out
}

// deletion returns the deletion of the event's object.
func (e Event) deletion() Event {
	if e.Service != nil {
		return Event{GoneService: e.Service.Name}
	}
	if e.HostPod != nil {
		return Event{GoneHostPod: e.HostPod.Name}
	}
	return Event{GoneSlice: e.Slice.Name}
}

// emptied returns the object without its content.
func (e Event) emptied() Event {
	if e.Service != nil {
		return Event{Service: &service.Service{Name: e.Service.Name, Created: e.Service.Created}}
	}
	if e.HostPod != nil {
		return Event{HostPod: &service.HostPod{Name: e.HostPod.Name}}
	}
	return Event{Slice: &service.Slice{Name: e.Slice.Name, Service: e.Slice.Service}}
}

// altered returns the object in a possible earlier state: its ports and endpoints are shuffled and cut, and its ports
// and conditions changed.
func (e Event) altered(rng *rand.Rand) Event {
	if e.Service != nil {
		o := *e.Service
		o.Ports = slices.Clone(o.Ports)
		for i := range o.Ports {
			o.Ports[i].Port++
		}
		o.ExternalLocal, o.Weighted = !o.ExternalLocal, !o.Weighted
		o.Balance, o.Balanced = service.Maglev, !o.Balanced
		return Event{Service: &o}
	}
	if e.HostPod != nil {
		o := *e.HostPod
		o.Ports = slices.Clone(o.Ports)
		for i := range o.Ports {
			o.Ports[i].Port++
			o.Ports[i].Addr = netip.Addr{}
		}
		return Event{HostPod: &o}
	}
	o := *e.Slice
	o.Endpoints = slices.Clone(o.Endpoints)
	rng.Shuffle(len(o.Endpoints), func(i, j int) { o.Endpoints[i], o.Endpoints[j] = o.Endpoints[j], o.Endpoints[i] })
	o.Endpoints = o.Endpoints[:rng.IntN(len(o.Endpoints)+1)]
	for i := range o.Endpoints {
		o.Endpoints[i].Ready = !o.Endpoints[i].Ready
		o.Endpoints[i].Weight, o.Endpoints[i].HasWeight = uint16(rng.IntN(3)), true
	}
	return Event{Slice: &o}
}
