package scenario

import (
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// An Event is a change of one object: exactly one field is set. GoneService and GoneSlice name a deleted object.
type Event struct {
	Service     *service.Service
	Slice       *service.Slice
	GoneService api.Name
	GoneSlice   api.Name
	HostPod     *service.HostPod
	GoneHostPod api.Name
	Facts       *service.Facts // the facts changed: the zone, the addresses, the settings, the dead nodes
	Flush       bool           // make a table of all events so far
}

// A State applies events in their order and makes tables of them. It is a small version of internal/proxy.
type State struct {
	facts    service.Facts
	table    *service.Table // the last result of Table
	services map[api.Name]*service.Service
	slices   []*service.Slice              // in the order of their events
	hostPods map[api.Name]*service.HostPod // by the names of their entries
	dirty    map[api.Name]bool
	builder  *service.Builder
}

// NewState returns a State without objects.
func NewState(facts service.Facts) *State {
	return &State{
		facts:    facts,
		table:    &service.Table{},
		services: map[api.Name]*service.Service{},
		hostPods: map[api.Name]*service.HostPod{},
		dirty:    map[api.Name]bool{},
		builder:  service.NewBuilder().Limit(facts.Limits),
	}
}

// Apply applies an event. It ignores Event.Flush.
func (s *State) Apply(e Event) {
	switch {
	case e.Service != nil:
		s.services[e.Service.Name] = e.Service
		s.dirty[e.Service.Name] = true
	case e.Slice != nil:
		s.removeSlice(e.Slice.Name)
		s.slices = append(s.slices, e.Slice)
		s.dirty[e.Slice.Service] = true
	case e.GoneService != api.Name{}:
		delete(s.services, e.GoneService)
		s.dirty[e.GoneService] = true
	case e.GoneSlice != api.Name{}:
		s.removeSlice(e.GoneSlice)
	case e.HostPod != nil:
		s.hostPods[e.HostPod.Entry()] = e.HostPod
		s.dirty[e.HostPod.Entry()] = true
	case e.GoneHostPod != api.Name{}:
		gone := service.HostPod{Name: e.GoneHostPod}
		delete(s.hostPods, gone.Entry())
		s.dirty[gone.Entry()] = true
	case e.Facts != nil:
		change := e.Facts.ChangeFrom(s.facts)
		for e := range s.table.Entries() {
			if change.Affects(e) {
				s.dirty[e.Name] = true
			}
		}
		s.facts = *e.Facts
	}
}

func (s *State) removeSlice(n api.Name) {
	s.slices = slices.DeleteFunc(s.slices, func(o *service.Slice) bool {
		if o.Name == n {
			s.dirty[o.Service] = true
		}
		return o.Name == n
	})
}

// Each calls f for every Service and its slices, until the first error.
func (s *State) Each(f func(*service.Service, []*service.Slice, service.Facts) error) error {
	for n, svc := range s.services {
		if err := f(svc, s.slicesOf(n), s.facts); err != nil {
			return fmt.Errorf("%v: %w", n, err)
		}
	}
	return nil
}

func (s *State) slicesOf(n api.Name) (eps []*service.Slice) {
	for _, o := range s.slices {
		if o.Service == n {
			eps = append(eps, o)
		}
	}
	return eps
}

// Table returns the table of all events so far.
func (s *State) Table() *service.Table {
	for n := range s.dirty {
		svc := s.services[n]
		if p := s.hostPods[n]; p != nil {
			s.builder.Set(service.CompileHostPod(p, nodeAddrs(), s.facts.Node))
			continue
		}
		if svc == nil {
			s.builder.Delete(n)
			continue
		}
		s.builder.Set(service.Compile(svc, s.slicesOf(n), s.facts))
	}
	clear(s.dirty)
	s.table = s.builder.Table(s.facts.Settings)
	return s.table
}
