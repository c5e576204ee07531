package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A serverID identifies a virtual server.
type serverID struct {
	Addr  netip.AddrPort
	Proto api.Proto
}

// String returns "250.64.0.7:1/TCP".
func (i serverID) String() string { return service.Key{Addr: i.Addr, Proto: i.Proto}.String() }

// A virtualServer is a virtual server with its real servers.
type virtualServer struct {
	sched   string
	persist uint32 // session affinity in seconds, or 0
	reals   map[netip.AddrPort]uint16
	// leaving has the real servers that get no new connections, and the time to remove each. A real server is removed
	// earlier if IPVS counts no connections.
	leaving map[netip.AddrPort]time.Time
}

// equal reports whether s and o have an equal effect in the kernel.
func (s *virtualServer) equal(o *virtualServer) bool {
	return s.sched == o.sched && s.persist == o.persist && maps.Equal(s.reals, o.reals)
}

// drains reports whether the scheduler skips real servers of weight 0. Hashing schedulers choose such a server, and
// refuse the connection.
func (s *virtualServer) drains() bool { return !slices.Contains([]string{"sh", "dh", "mh"}, s.sched) }

// A frontendState is the state of one frontend in the nft table.
type frontendState struct {
	comment            string
	internal, external nftset.VerdictID // external is 0 if it equals internal
	// server and externalServer are virtual servers, or zero if none is needed.
	server, externalServer netip.AddrPort
	sources                nftset.Sources
}

func (f *frontendState) equal(o *frontendState) bool {
	return f.comment == o.comment && f.internal == o.internal && f.external == o.external && f.server == o.server &&
		f.externalServer == o.externalServer && f.sources.Equal(o.sources)
}

// A state is the complete state of the datapath in the kernel.
type state struct {
	frontends  map[service.Key]*frontendState
	servers    map[serverID]*virtualServer
	hairpins   nftset.Counts // addresses of endpoints on this node
	clusterIPs nftset.Counts
	externals  nftset.Counts // load balancers' addresses and external IPs
	settings   service.Settings
	classes    map[serverID]classID // the classes of servers with affinity
	lastServer [2]uint32            // the last assigned number in each half of the addresses
	schedulers map[string]bool      // the tried schedulers, and whether the kernel has them
}

func newState() *state {
	return &state{
		frontends: map[service.Key]*frontendState{}, servers: map[serverID]*virtualServer{},
		hairpins: nftset.Counts{}, clusterIPs: nftset.Counts{}, externals: nftset.Counts{}, classes: map[serverID]classID{},
	}
}

// at returns the state of k. It is empty if the kernel has no such frontend.
func (s *state) at(k service.Key) *frontendState {
	if f := s.frontends[k]; f != nil {
		return f
	}
	return &frontendState{}
}

// equal reports whether s and o describe equal states of the kernel. It ignores use counts, which are not in the
// kernel, and leaving real servers, which Check removes.
func (s *state) equal(o *state) bool {
	return maps.EqualFunc(s.frontends, o.frontends, (*frontendState).equal) && maps.EqualFunc(s.servers, o.servers, (*virtualServer).equal) && maps.Equal(s.classes, o.classes) &&
		s.settings.Equal(o.settings) && s.hairpins.SameAddrs(o.hairpins) && s.clusterIPs.SameAddrs(o.clusterIPs) && s.externals.SameAddrs(o.externals)
}

// read reads the state from the kernel.
func (d *Datapath) read(ctx context.Context) (*state, error) {
	r := reader{d.rules.Reader(ctx), newState()}
	for _, is4 := range nftset.Families {
		for _, nodePort := range []bool{false, true} {
			r.verdicts(is4, nodePort, false, func(f *frontendState, v nftset.VerdictID) { f.internal = v })
			r.verdicts(is4, nodePort, true, func(f *frontendState, v nftset.VerdictID) { f.external = v })
			r.servers(is4, nodePort, false, func(f *frontendState, a netip.AddrPort) { f.server = a })
			r.servers(is4, nodePort, true, func(f *frontendState, a netip.AddrPort) { f.externalServer = a })
		}
		r.Sources(is4, func(k service.Key) *nftset.Sources { return &r.frontend(k).sources })
		r.Addrs(nftset.Hairpin, is4, func(a netip.Addr) { r.state.hairpins[a] = 1 })
		r.readClasses(is4)
		r.Addrs(nftset.ClusterIPs, is4, func(a netip.Addr) { r.state.clusterIPs[a] = 1 })
		r.Addrs(nftset.ExternalAddresses, is4, func(a netip.Addr) { r.state.externals[a] = 1 })
	}
	r.state.settings = r.Settings()
	if err := r.Err(); err != nil {
		return nil, err
	}
	return r.state, d.readServers(ctx, r.state)
}

// readServers reads the virtual servers, and sets lastServer.
func (d *Datapath) readServers(ctx context.Context, s *state) error {
	all, err := d.genl.servers(ctx)
	if err != nil {
		return err
	}
	for i, f := range all {
		found := f.virtualServer
		found.reals, found.leaving = map[netip.AddrPort]uint16{}, map[netip.AddrPort]time.Time{}
		reals, err := d.genl.reals(ctx, i)
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
		number := serverNumber(i.Addr.Addr())
		last := &s.lastServer[number&fewServer/fewServer]
		*last = max(*last, number&^fewServer)
	}
	return nil
}

// reader reads a state.
type reader struct {
	*nftset.Reader
	state *state
}

// frontend returns the state of a frontend, for the caller to fill.
func (r *reader) frontend(k service.Key) *frontendState {
	return nftset.Ensure(r.state.frontends, k)
}

func (r *reader) verdicts(is4, nodePort, external bool, put func(*frontendState, nftset.VerdictID)) {
	set, _ := setsOf(nodePort, external)
	r.Frontends(set, is4, nodePort, func(k service.Key, e nft.Element) error {
		v, err := nftset.ParseNumber(e.Data)
		f := r.frontend(k)
		f.comment = e.Comment
		put(f, nftset.VerdictID(v))
		return err
	})
}

func (r *reader) servers(is4, nodePort, external bool, put func(*frontendState, netip.AddrPort)) {
	_, set := setsOf(nodePort, external)
	r.Frontends(set, is4, nodePort, func(k service.Key, e nft.Element) error {
		a, _, err := nftset.ParseAddrPort(e.Data, is4)
		put(r.frontend(k), a)
		return err
	})
}

func (r *reader) readClasses(is4 bool) {
	size := nftset.AddrSize(is4)
	r.Each(affinityServers.Name(is4), func(e nft.Element) error {
		addr, ok := netip.AddrFromSlice(e.Key[:min(size, len(e.Key))])
		if !ok || len(e.Key) != size+4 {
			return fmt.Errorf("key has %d bytes", len(e.Key))
		}
		class, err := nftset.ParseNumber(e.Data)
		r.state.classes[serverID{netip.AddrPortFrom(addr, serverPortNumber), api.Proto(e.Key[size])}] = classID(class)
		return err
	})
}
