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
	Node        *service.Node // the node itself has changed: its zone, its addresses, its settings
	Flush       bool          // make a table of all events so far
}

// A State applies events in their order and makes tables of them. It is a small version of internal/proxy.
type State struct {
	node     service.Node
	services map[api.Name]*service.Service
	slices   []*service.Slice              // in the order of their events
	hostPods map[api.Name]*service.HostPod // by the names of their entries
	dirty    map[api.Name]bool
	builder  *service.Builder
}

// NewState returns a State without objects.
func NewState(node service.Node) *State {
	return &State{
		node:     node,
		services: map[api.Name]*service.Service{},
		hostPods: map[api.Name]*service.HostPod{},
		dirty:    map[api.Name]bool{},
		builder:  service.NewBuilder().Limit(node.Limits),
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
	case e.Node != nil:
		if !s.node.CompilesLike(*e.Node) || len(s.node.DeadUnlike(*e.Node)) > 0 {
			for n := range s.hostPods {
				s.dirty[n] = true
			}
			for n := range s.services {
				s.dirty[n] = true
			}
		}
		s.node = *e.Node
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
func (s *State) Each(f func(*service.Service, []*service.Slice, service.Node) error) error {
	for n, svc := range s.services {
		if err := f(svc, s.slicesOf(n), s.node); err != nil {
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
			s.builder.Set(service.CompileHostPod(p, nodeAddrs(), s.node))
			continue
		}
		if svc == nil {
			s.builder.Delete(n)
			continue
		}
		s.builder.Set(service.Compile(svc, s.slicesOf(n), s.node))
	}
	clear(s.dirty)
	return s.builder.Table(s.node.Settings)
}
