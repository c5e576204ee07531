package ipvs

import (
	"context"
	"fmt"
	gomaps "maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// An id names a virtual server.
type id struct {
	Addr  netip.AddrPort
	Proto service.Proto
}

// String returns "250.64.0.7:1/TCP".
func (i id) String() string { return service.Key{Addr: i.Addr, Proto: i.Proto}.String() }

// A server is a virtual server.
type server struct {
	sched   string
	persist uint32 // how many seconds a client stays; 0: not at all
	reals   map[netip.AddrPort]uint16
	// leaving are real servers that get no new connections and are removed when IPVS
	// counts none any more, or at the given time.
	leaving map[netip.AddrPort]time.Time
}

// equal reports whether the kernel does the same for s and o.
func (s *server) equal(o *server) bool {
	return s.sched == o.sched && s.persist == o.persist && gomaps.Equal(s.reals, o.reals)
}

// drains reports whether the scheduler passes over real servers of weight 0. Those that
// hash send a client there and refuse it.
func (s *server) drains() bool { return !slices.Contains([]string{"sh", "dh", "mh"}, s.sched) }

// A front is what the nft table holds for one frontend.
type front struct {
	comment         string
	inside, outside how // outside is 0 where both are treated alike
	// server and outsideServer are virtual servers; invalid where none is needed.
	server, outsideServer netip.AddrPort
	// guarded says that only sources may come in.
	guarded bool
	sources []netipx.IPRange
}

func (f *front) equal(o *front) bool {
	return f.comment == o.comment && f.inside == o.inside && f.outside == o.outside && f.server == o.server &&
		f.outsideServer == o.outsideServer && f.guarded == o.guarded && slices.Equal(f.sources, o.sources)
}

// state is what the kernel holds, all of it.
type state struct {
	fronts   map[service.Key]*front
	servers  map[id]*server
	hairpins map[netip.Addr]int // how many endpoints need it; 1 where not known
	reserved map[netip.Addr]int // how many frontends reserve it; 1 where not known
	settings service.Settings
	next     uint32 // where to look for an address for a virtual server
}

func newState() *state {
	return &state{
		fronts: map[service.Key]*front{}, servers: map[id]*server{},
		hairpins: map[netip.Addr]int{}, reserved: map[netip.Addr]int{},
	}
}

// at returns what is held for k, an empty one if nothing is.
func (s *state) at(k service.Key) *front {
	if f := s.fronts[k]; f != nil {
		return f
	}
	return &front{}
}

// same reports whether the kernel holds the same in s and o. Counts of uses are ours, and
// real servers that leave come to their end by themselves.
func (s *state) same(o *state) bool {
	members := func(a, b map[netip.Addr]int) bool {
		return gomaps.EqualFunc(a, b, func(int, int) bool { return true })
	}
	return gomaps.EqualFunc(s.fronts, o.fronts, (*front).equal) && gomaps.EqualFunc(s.servers, o.servers, (*server).equal) &&
		s.settings.Equal(o.settings) && members(s.hairpins, o.hairpins) && members(s.reserved, o.reserved)
}

// read returns what the kernel holds.
func (d *Datapath) read(ctx context.Context) (*state, error) {
	r := reader{ctx: ctx, table: d.table, state: newState()}
	for _, is4 := range families {
		for _, nodePort := range []bool{false, true} {
			r.fronts(is4, nodePort, false, func(f *front, h how) { f.inside = h })
			r.fronts(is4, nodePort, true, func(f *front, h how) { f.outside = h })
			r.servers(is4, nodePort, false, func(f *front, a netip.AddrPort) { f.server = a })
			r.servers(is4, nodePort, true, func(f *front, a netip.AddrPort) { f.outsideServer = a })
		}
		r.guards(is4)
		r.members(is4, "hairpin", r.state.hairpins)
		r.members(is4, "reserved", r.state.reserved)
		r.state.settings.Pods = append(r.state.settings.Pods, r.prefixes("pods", is4)...)
		r.state.settings.ServiceCIDRs = append(r.state.settings.ServiceCIDRs, r.prefixes("service-cidrs", is4)...)
		r.state.settings.NodePorts = append(r.state.settings.NodePorts, r.prefixes("nodeport-addresses", is4)...)
	}
	if r.err == nil {
		r.state.settings.PodInterfaces, r.err = d.table.Links(ctx, podLinks)
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.state, d.readServers(ctx, r.state)
}

// readServers reads the virtual servers, and where to look for the next address.
func (d *Datapath) readServers(ctx context.Context, s *state) error {
	all, err := d.wire.servers(ctx)
	if err != nil {
		return err
	}
	for i, f := range all {
		found := f.server
		found.reals, found.leaving = map[netip.AddrPort]uint16{}, map[netip.AddrPort]time.Time{}
		reals, err := d.wire.reals(ctx, i)
		if err != nil {
			return err
		}
		for a, r := range reals {
			if r.weight == 0 {
				found.leaving[a] = time.Now().Add(d.drain)
				continue
			}
			found.reals[a] = r.weight
		}
		s.servers[i] = &found
		s.next = max(s.next, ownNumber(i.Addr.Addr()))
	}
	return nil
}

// reader reads set after set until the first error.
type reader struct {
	ctx   context.Context // of this reading
	table *nft.Table
	state *state
	err   error
}

// each calls f for every element of a set.
func (r *reader) each(name string, f func(e nft.Element) error) {
	if r.err == nil {
		r.err = r.table.Elements(r.ctx, name, f)
	}
}

// front returns the one of a key, to be filled.
func (r *reader) front(k service.Key) *front {
	f := r.state.fronts[k]
	if f == nil {
		f = &front{}
		r.state.fronts[k] = f
	}
	return f
}

func (r *reader) fronts(is4, nodePort, outside bool, put func(*front, how)) {
	set, _ := maps(nodePort, outside)
	r.each(name(set, is4), func(e nft.Element) error {
		k, err := parseFrontKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		h, err := parseHow(e.Data)
		if err != nil {
			return err
		}
		f := r.front(k)
		f.comment = e.Comment
		put(f, h)
		return nil
	})
}

func (r *reader) servers(is4, nodePort, outside bool, put func(*front, netip.AddrPort)) {
	_, set := maps(nodePort, outside)
	r.each(name(set, is4), func(e nft.Element) error {
		k, err := parseFrontKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		a, err := parseServerData(e.Data, is4)
		if err != nil {
			return err
		}
		put(r.front(k), a)
		return nil
	})
}

// guards reads who may come in.
func (r *reader) guards(is4 bool) {
	r.each(name("guarded", is4), func(e nft.Element) error {
		k, err := parseFrontKey(e.Key, is4, false)
		if err == nil {
			r.front(k).guarded = true
		}
		return err
	})
	size := addrSize(is4)
	r.each(name("sources", is4), func(e nft.Element) error {
		if len(e.Key) < size || len(e.Last) != len(e.Key) {
			return fmt.Errorf("range has %d and %d bytes", len(e.Key), len(e.Last))
		}
		k, err := parseFrontKey(e.Key[:len(e.Key)-size], is4, false)
		if err != nil {
			return err
		}
		from, _ := netip.AddrFromSlice(e.Key[len(e.Key)-size:])
		to, _ := netip.AddrFromSlice(e.Last[len(e.Last)-size:])
		f := r.front(k)
		f.sources = append(f.sources, netipx.IPRangeFrom(from, to))
		slices.SortFunc(f.sources, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
		return nil
	})
}

// members reads a set of addresses; in a hairpin's key the address stands first.
func (r *reader) members(is4 bool, set string, into map[netip.Addr]int) {
	r.each(name(set, is4), func(e nft.Element) error {
		addr, ok := netip.AddrFromSlice(e.Key[:min(len(e.Key), addrSize(is4))])
		if !ok {
			return fmt.Errorf("address has %d bytes", len(e.Key))
		}
		into[addr] = 1
		return nil
	})
}

func (r *reader) prefixes(set string, is4 bool) (all []netip.Prefix) {
	if r.err == nil {
		all, r.err = r.table.Prefixes(r.ctx, name(set, is4))
	}
	return all
}
