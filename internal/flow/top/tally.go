package top

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Connection is one entry of conntrack.
type Connection struct {
	ID    uint32 // the kernel's
	Proto api.Proto
	// Frontend is the original destination, and Endpoint the source of the replies. They are equal if nothing is
	// translated.
	Client, Frontend, Endpoint netip.AddrPort
	// Open is false for a TCP connection that has ended, or that Unanswered describes.
	Open, Unanswered bool
	Bytes            uint64
}

// Rules are the Services of one mode on a node.
type Rules struct {
	Index *service.Index
	// Carries says that connections pass through a process of the node, so that conntrack does not translate them.
	Carries bool
	// Local reports whether an address is the node's own. It is asked only if Carries.
	Local func(netip.Addr) bool
}

// owner returns the Service port that a connection belongs to.
func (r Rules) owner(c Connection) (name api.PortName, is bool) {
	translated := c.Endpoint != c.Frontend
	if !translated && !r.Carries {
		return name, false // another node translates it, or none does
	}
	f := r.Index.Frontend(service.Key{Addr: c.Frontend, Proto: c.Proto}, translated || r.Local(c.Frontend.Addr()))
	if f == nil {
		return name, false
	}
	return f.Service, true
}

// A Tally counts the connections of a node's Services, round by round. Each round shows it all entries of conntrack. The
// zero value works.
type Tally struct {
	rules []Rules
	// round is the number of the present round, from 1.
	round uint32
	live  map[identity]record
	rows  map[place]*counted
}

// An identity tells connections apart. The kernel's ID alone is a hash of 32 bits, which some of 500,000 share.
type identity struct {
	id   uint32
	port uint16 // the client's
}

type record struct {
	bytes uint64
	round uint32
}

// A place is a Service port (without an address), or an endpoint of a Service port.
type place struct {
	service  api.PortName
	endpoint netip.AddrPort
}

type counted struct {
	Figures
	round uint32 // the last one in which it had a connection
}

// Begin begins a round with the Services of each mode.
func (t *Tally) Begin(rules []Rules) {
	if t.live == nil {
		t.live, t.rows = map[identity]record{}, map[place]*counted{}
	}
	t.rules = rules
	t.round++
	for _, c := range t.rows {
		c.Connections, c.Unanswered = 0, 0
	}
}

// Add counts a connection, if it belongs to a Service. Connections of the first round are not new.
func (t *Tally) Add(c Connection) {
	for _, r := range t.rules {
		name, is := r.owner(c)
		if !is {
			continue
		}
		id := identity{c.ID, c.Client.Port()}
		was, known := t.live[id]
		isNew := !known && t.round > 1
		bytes := c.Bytes - min(was.bytes, c.Bytes)
		if !known && !isNew {
			bytes = 0
		}
		t.live[id] = record{c.Bytes, t.round}
		t.count(place{service: name}, c, isNew, bytes)
		if c.Endpoint != c.Frontend {
			t.count(place{name, c.Endpoint}, c, isNew, bytes)
		}
		return
	}
}

func (t *Tally) count(at place, c Connection, isNew bool, bytes uint64) {
	row := t.rows[at]
	if row == nil {
		row = &counted{}
		t.rows[at] = row
	}
	row.round = t.round
	row.Bytes += bytes
	if isNew {
		row.New++
	}
	switch {
	case c.Open:
		row.Connections++
	case c.Unanswered:
		row.Unanswered++
	}
}

// End ends the round. It forgets the connections and rows that the round did not have.
func (t *Tally) End() {
	for id, r := range t.live {
		if r.round != t.round {
			delete(t.live, id)
		}
	}
	for at, r := range t.rows {
		if r.round != t.round {
			delete(t.rows, at)
		}
	}
}

// Refused are the cumulative counters of a Service port's rules.
type Refused struct{ Rejects, Drops uint64 }

// Fill writes the figures into a sample: all Service ports, and the endpoints of one Service, if it is not empty.
func (t *Tally) Fill(s *Sample, refused map[api.PortName]Refused, endpointsOf api.Name) {
	all := map[api.PortName]Figures{}
	for at, row := range t.rows {
		switch {
		case !at.endpoint.IsValid():
			all[at.service] = row.Figures
		case at.service.Name == endpointsOf:
			s.Endpoints = append(s.Endpoints, EndpointFigures{at.service.String(), at.endpoint, row.Figures})
		}
	}
	for name, r := range refused {
		if r != (Refused{}) {
			f := all[name]
			f.Rejects, f.Drops = r.Rejects, r.Drops
			all[name] = f
		}
	}
	s.Services = make([]ServiceFigures, 0, len(all))
	for name, f := range all {
		s.Services = append(s.Services, ServiceFigures{name.String(), f})
	}
	slices.SortFunc(s.Services, func(a, b ServiceFigures) int {
		return cmp.Or(busier(a.Figures, b.Figures), cmp.Compare(a.Service, b.Service))
	})
	slices.SortFunc(s.Endpoints, func(a, b EndpointFigures) int {
		return cmp.Or(busier(a.Figures, b.Figures), cmp.Compare(a.Service, b.Service), a.Addr.Compare(b.Addr))
	})
	s.LeftOut = max(0, len(s.Services)-MaxRows) + max(0, len(s.Endpoints)-MaxRows)
	s.Services = s.Services[:min(len(s.Services), MaxRows)]
	s.Endpoints = s.Endpoints[:min(len(s.Endpoints), MaxRows)]
}

// busier orders rows for the bound of a sample.
func busier(a, b Figures) int {
	sum := func(f Figures) uint64 { return uint64(f.Connections+f.Unanswered) + f.New + f.Rejects + f.Drops }
	return cmp.Compare(sum(b), sum(a))
}
