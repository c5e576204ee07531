package ipvs

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// changes are the changes of one Sync, in order: before, writes, after. Every frontend is complete between two of these
// steps. A virtual server and its real servers are added before the first packet can come, and removed after the last
// packet.
type changes struct {
	before []serverOp
	writes []nft.Write
	after  []serverOp

	frontends                       map[service.Key]*frontendState // changed frontends; an empty state removes one
	servers                         map[serverID]*virtualServer    // changed servers; nil removes one
	classes                         map[serverID]classID           // classes of changed servers; 0: none
	hairpins, clusterIPs, externals nftset.Counts                  // changed counts
	settings                        service.Settings
	changedFrontends                map[service.Key]bool // frontends that change their behaviour
}

// An endpointList is one of the two lists of endpoints of a frontend.
type endpointList struct {
	key      service.Key
	external bool
}

// A sharedServer is a wanted virtual server, and the lists of endpoints that share it.
type sharedServer struct {
	virtualServer
	proto api.Proto
	is4   bool
	lists []endpointList
	at    netip.AddrPort // the zero value before an address is assigned
}

// errFull says that there is no free address for a virtual server.
var errFull = errors.New("no address is left for another virtual server")

// render compares want with the state, and returns the changes. It does not change the state, except for lastServer.
func (d *Datapath) render(want *service.Table, differ []service.Change, full bool) (*changes, error) {
	r := &changes{
		frontends: map[service.Key]*frontendState{}, servers: map[serverID]*virtualServer{}, settings: want.Settings,
		changedFrontends: map[service.Key]bool{},
	}
	wanted := map[service.Key]*frontendState{}
	servers := map[serverID]*virtualServer{}
	for _, n := range services(differ) {
		if err := d.state.entry(want.Entry(n), wanted, servers); err != nil {
			return nil, err
		}
	}
	var p changeset
	for _, k := range d.keys(differ, full) {
		was, is := d.state.at(k), wanted[k]
		for _, a := range [...]netip.AddrPort{was.server, was.externalServer} {
			for _, i := range (serverID{a, k.Proto}).withOverflow() {
				if a.IsValid() && servers[i] == nil {
					r.servers[i] = nil
				}
			}
		}
		if is == nil {
			is = &frontendState{}
		}
		if !was.equal(is) {
			r.frontends[k], r.changedFrontends[k] = is, true
			p.frontend(k, was, is)
		}
	}
	if full {
		for i := range d.state.servers {
			r.servers[i] = servers[i]
		}
		for i := range d.state.classes {
			r.servers[i] = servers[i]
		}
	}
	maps.Copy(r.servers, servers)
	d.serverOps(r, wanted)
	r.affinity(&p, d.state.classes)
	r.hairpins = d.state.hairpins.Change(differ, nftset.LocalEndpointsOf, full)
	r.clusterIPs = d.state.clusterIPs.Change(differ, nftset.ClusterIPsOf, full)
	r.externals = d.state.externals.Change(differ, nftset.ExternalAddressesOf, full)
	p.addrs(nftset.ExternalAddresses, d.state.externals, r.externals, netip.Addr.AsSlice)
	p.addrs(nftset.Hairpin, d.state.hairpins, r.hairpins, nftset.HairpinKey)
	p.addrs(nftset.ClusterIPs, d.state.clusterIPs, r.clusterIPs, netip.Addr.AsSlice)
	p.settings = nftset.ChangeSettings(d.state.settings, want.Settings)
	r.writes = p.writes()
	return r, nil
}

// serverOps plans the changes of virtual servers.
func (d *Datapath) serverOps(r *changes, wanted map[service.Key]*frontendState) {
	different := map[serverID]bool{}
	for i, is := range r.servers {
		was := d.state.servers[i]
		if was == nil || is == nil || !was.equal(is) {
			different[i] = true
		}
		r.server(i, was, is, time.Now().Add(d.drain))
	}
	for k, f := range wanted {
		if different[serverID{f.server, k.Proto}] || different[serverID{f.externalServer, k.Proto}] {
			r.changedFrontends[k] = true
		}
	}
}

// changes returns the frontends that may have to change: the difference to the last table, or all after the kernel was
// read.
func (d *Datapath) changes(want *service.Table, full bool) []service.Change {
	if !full {
		return service.Diff(d.applied, want)
	}
	var all []service.Change
	for f := range want.Frontends() {
		all = append(all, service.Change{New: f})
	}
	return all
}

// services returns the Services of changes, sorted.
func services(changes []service.Change) []api.Name {
	set := map[api.Name]bool{}
	for _, c := range changes {
		for _, f := range [...]*service.Frontend{c.Old, c.New} {
			if f != nil {
				set[f.Service.Name] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(set), api.Name.Compare)
}

// keys returns the keys of the frontends that the Services of changes have or had.
func (d *Datapath) keys(changes []service.Change, full bool) []service.Key {
	set := map[service.Key]bool{}
	for _, c := range changes {
		set[c.Key()] = true
	}
	if full {
		for k := range d.state.frontends {
			set[k] = true
		}
	} else {
		for _, n := range services(changes) {
			if e := d.applied.Entry(n); e != nil {
				for _, f := range e.Frontends {
					set[f.Key()] = true
				}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(set), service.Key.Compare)
}

// entry adds the wanted frontends and virtual servers of a Service. e may be nil.
func (s *state) entry(e *service.Entry, frontends map[service.Key]*frontendState, servers map[serverID]*virtualServer) error {
	if e == nil {
		return nil
	}
	all := s.sharedServers(e)
	if err := s.assignAddrs(e.Name, all, servers); err != nil {
		return err
	}
	for _, f := range e.Frontends {
		is := &frontendState{comment: commentOf(f).String(), internal: verdictFor(f.Internal, f.NodePort(), false), sources: nftset.SourcesOf(f)}
		if !f.Internal.Equal(f.External) {
			is.external = verdictFor(f.External, f.NodePort(), true)
		}
		frontends[f.Key()] = is
	}
	for _, p := range all {
		i := serverID{p.at, p.proto}
		if servers[i] = &p.virtualServer; p.persist > 0 {
			servers[i.overflow()] = s.overflowServer(&p.virtualServer)
		}
		for _, at := range p.lists {
			if at.external {
				frontends[at.key].externalServer = p.at
			} else {
				frontends[at.key].server = p.at
			}
		}
	}
	return nil
}

// sharedServers returns the virtual servers that a Service needs. Routes of one port with equal endpoints share a
// virtual server, so that connection counts and affinity belong to the port.
//   - Lists of policy Local have their own virtual servers, because of affinity: an address with local endpoints only
//     must not send a client to an endpoint that another address chose for the client.
//   - Scheduling by destination address has a virtual server for each address.
func (s *state) sharedServers(e *service.Entry) (all []*sharedServer) {
	type kind struct {
		port  string
		proto api.Proto
		is4   bool
		local bool
		sched string
		stays uint32
		at    service.Key // for dh only
	}
	of := map[kind][]*sharedServer{}
	add := func(f *service.Frontend, r *service.Route, external bool) {
		if r.Action != service.Forward || len(r.Endpoints) == 0 {
			return
		}
		reals, weighted := realsOf(r.Endpoints)
		k := kind{f.Service.Port, f.Proto, f.Addr.Addr().Is4(), r.Local, s.scheduler(f.Balance, weighted), persistence(f), service.Key{}}
		if f.Balance == service.DestHash {
			k.at = f.Key()
		}
		i := slices.IndexFunc(of[k], func(p *sharedServer) bool { return maps.Equal(p.reals, reals) })
		if i < 0 {
			i = len(of[k])
			p := &sharedServer{virtualServer: virtualServer{sched: k.sched, persist: k.stays, reals: reals}, proto: k.proto, is4: k.is4}
			of[k] = append(of[k], p)
			all = append(all, p)
		}
		of[k][i].lists = append(of[k][i].lists, endpointList{f.Key(), external})
	}
	for _, f := range slices.SortedFunc(slices.Values(e.Frontends), func(a, b *service.Frontend) int { return a.Key().Compare(b.Key()) }) {
		add(f, f.Internal, false)
		if !f.Internal.Equal(f.External) {
			add(f, f.External, true)
		}
	}
	return all
}

// realsOf returns the endpoints with their weights. The default weight is 1.
func realsOf(eps []service.Endpoint) (all map[netip.AddrPort]uint16, weighted bool) {
	all = make(map[netip.AddrPort]uint16, len(eps))
	for _, e := range eps {
		all[e.Addr] = uint16(lb.Weight(e))
		weighted = weighted || e.Weight > 1
	}
	return all, weighted
}

// assignAddrs gives each server an address. It keeps the present address of the server's frontends, if that address
// belongs to the Service, so a virtual server stays as long as its Service port. taken has the virtual servers that
// other Services got in this Sync.
func (s *state) assignAddrs(n api.Name, all []*sharedServer, taken map[serverID]*virtualServer) error {
	mine, full := map[netip.AddrPort]bool{}, manyClientServers{}
	for _, exact := range []bool{true, false} {
		for _, p := range all {
			for _, at := range p.lists {
				was := s.at(at.key)
				a := was.server
				if at.external {
					a = was.externalServer
				}
				held := s.servers[serverID{a, p.proto}]
				if p.at.IsValid() || held == nil || mine[a] || taken[serverID{a, p.proto}] != nil || !strings.HasPrefix(was.comment, n.String()) || !full.mayAssign(p, serverNumber(a.Addr())) {
					continue
				}
				if !exact || maps.Equal(held.reals, p.reals) {
					p.at, mine[a] = a, true
					full.noteAssigned(p)
				}
			}
		}
	}
	for _, p := range all {
		if p.at.IsValid() {
			continue
		}
		var few uint32
		if !full.mayAssign(p, few) {
			few = fewServer
		}
		at := func(n uint32) serverID {
			return serverID{netip.AddrPortFrom(virtualServerAddr(p.is4, few|n), serverPortNumber), p.proto}
		}
		last := &s.lastServer[few/fewServer]
		next, ok := lb.NextFree(*last, maxServers, func(n uint32) bool { return s.servers[at(n)] != nil || taken[at(n)] != nil })
		if !ok {
			return errFull
		}
		p.at, *last = at(next).Addr, next
		full.noteAssigned(p)
	}
	return nil
}

// server plans the change of one virtual server from was to is. Nil means that the server does not exist. until is the
// time to remove drained real servers at the latest.
func (r *changes) server(i serverID, was, is *virtualServer, until time.Time) {
	switch {
	case is == nil && was == nil:
		return
	case is == nil:
		r.after = append(r.after, serverOp{cmd: cmdDelServer, server: i})
		return
	case was == nil:
		r.before = append(r.before, serverOp{cmd: cmdNewServer, server: i, definition: is})
		was = &virtualServer{}
	case was.sched != is.sched || was.persist != is.persist:
		r.before = append(r.before, serverOp{cmd: cmdSetServer, server: i, definition: is})
	}
	is.leaving = maps.Clone(was.leaving)
	if is.leaving == nil {
		is.leaving = map[netip.AddrPort]time.Time{}
	}
	for _, a := range slices.SortedFunc(maps.Keys(is.reals), netip.AddrPort.Compare) {
		cmd := byte(cmdNewReal)
		_, leaves := is.leaving[a]
		switch weight, there := was.reals[a]; {
		case there && weight == is.reals[a]:
			continue
		case there, leaves:
			cmd = cmdSetReal
		}
		delete(is.leaving, a)
		r.before = append(r.before, serverOp{cmd: cmd, server: i, real: a, weight: is.reals[a]})
	}
	for _, a := range slices.SortedFunc(maps.Keys(was.reals), netip.AddrPort.Compare) {
		if _, stays := is.reals[a]; stays {
			continue
		}
		if i.Proto != api.UDP && is.drains() {
			is.leaving[a] = until
			r.after = append(r.after, serverOp{cmd: cmdSetReal, server: i, real: a})
			continue
		}
		r.after = append(r.after, serverOp{cmd: cmdDelReal, server: i, real: a})
	}
	if !is.drains() {
		for a := range was.leaving {
			if _, back := is.reals[a]; !back {
				r.after = append(r.after, serverOp{cmd: cmdDelReal, server: i, real: a})
			}
		}
		clear(is.leaving)
	}
}

// A changeset has the writes of one Sync to the nft table, in order.
type changeset struct {
	settings []nft.Write
	early    []nft.Write // added or replaced addresses, servers and sources
	entries  []nft.Write
	open     []nft.Write // removed restrictions of sources
	late     []nft.Write // removed servers, sources and addresses
}

func (p *changeset) writes() []nft.Write {
	return slices.Concat(p.settings, p.early, p.entries, p.open, p.late)
}

// frontend adds the writes that replace the state was of a frontend by the state is.
func (p *changeset) frontend(k service.Key, was, is *frontendState) {
	key, is4, nodePort := nftset.FrontendKey(k), k.Addr.Addr().Is4(), k.Addr.Addr().IsUnspecified()
	verdicts, servers := setsOf(nodePort, false)
	external, externalServers := setsOf(nodePort, true)
	p.server(servers.Name(is4), key, was.server, is.server)
	p.server(externalServers.Name(is4), key, was.externalServer, is.externalServer)
	sources := nftset.ChangeSources(k, was.sources, is.sources)
	p.early = append(p.early, sources.Before...)
	p.open = append(p.open, sources.Open...)
	p.late = append(p.late, sources.After...)
	// The element for external clients is added before the element for all clients, and removed after it. Otherwise the
	// element for all clients would serve external clients.
	if is.external != 0 {
		p.verdict(external.Name(is4), key, was, is, was.external, is.external)
	}
	p.verdict(verdicts.Name(is4), key, was, is, was.internal, is.internal)
	if is.external == 0 {
		p.verdict(external.Name(is4), key, was, is, was.external, is.external)
	}
}

func (p *changeset) server(set string, key []byte, from, to netip.AddrPort) {
	if from == to {
		return
	}
	w := nft.Write{Set: set, Key: key, Del: from.IsValid(), Add: to.IsValid()}
	if !w.Add {
		p.late = append(p.late, w)
		return
	}
	w.Data = nftset.AddrPort(to)
	p.early = append(p.early, w)
}

func (p *changeset) verdict(set string, key []byte, was, is *frontendState, from, to nftset.VerdictID) {
	if from == to && (to == 0 || was.comment == is.comment) {
		return
	}
	w := nft.Write{Set: set, Key: key, Del: from != 0, Add: to != 0}
	if w.Add {
		w.Data, w.Comment = nftset.Number(uint32(to)), is.comment
	}
	p.entries = append(p.entries, w)
}

// addrs adds the writes of a set of addresses.
func (p *changeset) addrs(s nftset.Set, was, changed nftset.Counts, key func(netip.Addr) []byte) {
	add, del := was.Writes(s, changed, key)
	p.early = append(p.early, add...)
	p.late = append(p.late, del...)
}
