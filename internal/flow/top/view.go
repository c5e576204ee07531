package top

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A View joins the samples of the nodes. New returns one. It belongs to one goroutine.
type View struct {
	pace
	nodes    map[string]*node
	services map[api.PortName]*totals
	// asked is the Service whose endpoints the samples have.
	asked api.Name
}

// New returns a View of these nodes. interval is the time between two samples.
func New(interval time.Duration, nodes []string) *View {
	v := &View{pace: pace(interval), nodes: map[string]*node{}, services: map[api.PortName]*totals{}}
	for _, n := range nodes {
		v.nodes[n] = &node{}
	}
	return v
}

// A node is what a View knows of one node.
type node struct {
	contact
	last *Sample // nil: it has not answered yet
	// rows have the rates from the last sample but one to the last.
	rows      map[api.PortName]rates
	endpoints map[place]rates
}

// rates are figures of a row a second. measured is false with the first sample.
type rates struct {
	Figures
	measured                   bool
	new, bytes, rejects, drops float64
}

// totals are sums since the View began.
type totals struct{ New, Bytes, Rejects, Drops uint64 }

// maxServices bounds the Service ports of a View.
const maxServices = 100_000

// Add takes a sample of a node. The endpoints in it are those of endpointsOf. A sample that is no sample is an error of
// the node.
func (v *View) Add(name string, at time.Time, s *Sample, endpointsOf api.Name) {
	if err := s.Check(); err != nil {
		v.Fail(name, at, err.Error())
		return
	}
	n := v.nodes[name]
	if n == nil {
		n = &node{}
		v.nodes[name] = n
	}
	if endpointsOf != v.asked {
		v.follow(endpointsOf)
	}
	was := n.last
	if was != nil && (was.Run != s.Run || s.Millis <= was.Millis) {
		was = nil // the process began again, and so did its figures
	}
	hadEndpoints := was != nil && n.endpoints != nil
	n.rows = v.compare(was, s)
	n.endpoints = compareEndpoints(was, s, hadEndpoints)
	n.last = s
	n.answer(at, was != nil)
}

// follow makes the View expect the endpoints of another Service.
func (v *View) follow(service api.Name) {
	v.asked = service
	for _, n := range v.nodes {
		n.endpoints = nil
	}
}

// compare returns the rates of the Service ports between two samples, and adds the differences to the sums.
func (v *View) compare(was, is *Sample) map[api.PortName]rates {
	before := map[string]Figures{}
	if was != nil {
		for _, f := range was.Services {
			before[f.Service] = f.Figures
		}
	}
	rows := map[api.PortName]rates{}
	for _, f := range is.Services {
		name, err := portName(f.Service)
		if err != nil {
			continue // Check has refused it
		}
		r, grown := difference(was, is, before[f.Service], f.Figures)
		rows[name] = r
		t := v.services[name]
		if t == nil && len(v.services) >= maxServices {
			continue // a node that makes up names
		}
		if t == nil {
			t = &totals{}
			v.services[name] = t
		}
		t.New, t.Bytes = t.New+grown.New, t.Bytes+grown.Bytes
		t.Rejects, t.Drops = t.Rejects+grown.Rejects, t.Drops+grown.Drops
	}
	return rows
}

func compareEndpoints(was, is *Sample, had bool) map[place]rates {
	if !had {
		was = nil
	}
	type key struct {
		service string
		addr    netip.AddrPort
	}
	before := map[key]Figures{}
	if was != nil {
		for _, f := range was.Endpoints {
			before[key{f.Service, f.Addr}] = f.Figures
		}
	}
	rows := map[place]rates{}
	for _, f := range is.Endpoints {
		if name, err := portName(f.Service); err == nil {
			rows[place{name, f.Addr}], _ = difference(was, is, before[key{f.Service, f.Addr}], f.Figures)
		}
	}
	return rows
}

// difference returns the rates between two samples of a row. Without a first sample there are none.
func difference(was, is *Sample, before, after Figures) (r rates, grown totals) {
	r.Figures = after
	if was == nil {
		return r, grown
	}
	seconds := float64(is.Millis-was.Millis) / 1000
	grown = totals{New: since(before.New, after.New), Bytes: since(before.Bytes, after.Bytes),
		Rejects: since(before.Rejects, after.Rejects), Drops: since(before.Drops, after.Drops)}
	r.measured = true
	r.new, r.bytes = float64(grown.New)/seconds, float64(grown.Bytes)/seconds
	r.rejects, r.drops = float64(grown.Rejects)/seconds, float64(grown.Drops)/seconds
	return r, grown
}

// since returns how far a counter has come. A counter that is lower than before has begun again.
func since(before, after uint64) uint64 {
	if after < before {
		return after
	}
	return after - before
}

// Fail records that a node did not answer, and why. The last figures of the node count for a few more seconds.
func (v *View) Fail(name string, at time.Time, why string) {
	n := v.nodes[name]
	if n == nil {
		n = &node{}
		v.nodes[name] = n
	}
	n.fail(at, why)
}

// Asked records that a node without a sample was asked.
func (v *View) Asked(name string, at time.Time) {
	if n := v.nodes[name]; n != nil {
		n.asked(at)
	}
}

// Answered returns the number of nodes whose figures count.
func (v *View) Answered(now time.Time) (nodes int) {
	for _, n := range v.nodes {
		if v.counts(&n.contact, now) {
			nodes++
		}
	}
	return nodes
}

// notes says which figures are missing, and why.
func (v *View) notes(now time.Time) []string {
	groups := remarks{}
	add := groups.add
	for _, name := range slices.Sorted(maps.Keys(v.nodes)) {
		n := v.nodes[name]
		if text := v.silence(&n.contact, now); text != "" {
			add(text, name)
		}
		if !v.counts(&n.contact, now) {
			continue
		}
		s := n.last
		switch {
		case len(s.Modes) == 0:
			add("no proxy mode has rules there", name)
			continue
		case !s.CountsBytes:
			add("conntrack counts no bytes there [sysctl -w net.netfilter.nf_conntrack_acct=1 on the node: new connections are counted from then on]", name)
		}
		if !s.CountsRejects || !s.CountsDrops {
			add(fmt.Sprintf("mode %s has no counters of %s", s.Modes[0], missing(s)), name)
		}
		if s.AtConnect {
			add("connections whose socket mode ebpf translated are not counted", name)
		}
		if s.Read < s.Entries {
			add(fmt.Sprintf("only %d of %d entries of conntrack were read, so figures are too low", s.Read, s.Entries), name)
		}
		if s.LeftOut > 0 {
			add(fmt.Sprintf("%d quiet Service ports or endpoints are left out", s.LeftOut), name)
		}
	}
	return groups.lines()
}

func missing(s *Sample) string {
	switch {
	case s.CountsRejects:
		return "drops"
	case s.CountsDrops:
		return "rejects"
	}
	return "rejects and drops"
}
