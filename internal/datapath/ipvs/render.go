package ipvs

import (
	"errors"
	gomaps "maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/datapath/lb"
	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A rendering is what one Sync will do: first before, then writes, then after. Between two
// of them every frontend is whole: a virtual server and its real ones are there before
// the first packet can come, and leave after the last one could.
type rendering struct {
	before []op
	writes []nft.Write
	after  []op

	fronts   map[service.Key]*front // that change; empty ones go
	servers  map[id]*server         // that change; nil ones go
	hairpins map[netip.Addr]int     // counts that change
	reserved map[netip.Addr]int     // counts that change
	settings service.Settings
	changed  map[service.Key]bool // frontends that behave differently
}

// A side is one list of endpoints of a frontend.
type side struct {
	key     service.Key
	outside bool
}

// A pool is a virtual server that is wanted, and the sides that share it.
type pool struct {
	server
	proto service.Proto
	is4   bool
	sides []side
	at    netip.AddrPort // invalid: not decided
}

// errFull says that there is no address left for a virtual server.
var errFull = errors.New("no address is left for another virtual server")

// render compares want with what is held. It changes nothing but the place where the
// next address is looked for.
func (d *Datapath) render(want *service.Table, full bool) (*rendering, error) {
	r := &rendering{
		fronts: map[service.Key]*front{}, servers: map[id]*server{}, settings: want.Settings,
		hairpins: map[netip.Addr]int{}, reserved: map[netip.Addr]int{}, changed: map[service.Key]bool{},
	}
	changes := d.changes(want, full)
	wanted := map[service.Key]*front{}
	servers := map[id]*server{}
	for _, n := range services(changes) {
		if err := d.state.entry(want.Entry(n), wanted, servers); err != nil {
			return nil, err
		}
	}
	var p plan
	for _, k := range d.keys(changes, full) {
		was, is := d.state.at(k), wanted[k]
		for _, a := range [...]netip.AddrPort{was.server, was.outsideServer} {
			if i := (id{a, k.Proto}); a.IsValid() && servers[i] == nil {
				r.servers[i] = nil
			}
		}
		if is == nil {
			is = &front{}
		}
		if !was.equal(is) {
			r.fronts[k], r.changed[k] = is, true
			p.front(k, was, is)
		}
	}
	if full {
		for i := range d.state.servers {
			r.servers[i] = servers[i]
		}
	}
	gomaps.Copy(r.servers, servers)
	d.serverOps(r, wanted)
	d.members(r, &p, changes, full)
	p.settings(d.state.settings, want.Settings)
	r.writes = p.writes()
	return r, nil
}

// serverOps plans the changes of virtual servers.
func (d *Datapath) serverOps(r *rendering, wanted map[service.Key]*front) {
	different := map[id]bool{}
	for i, is := range r.servers {
		was := d.state.servers[i]
		if was == nil || is == nil || !was.equal(is) {
			different[i] = true
		}
		r.server(i, was, is, time.Now().Add(d.drain))
	}
	for k, f := range wanted {
		if different[id{f.server, k.Proto}] || different[id{f.outsideServer, k.Proto}] {
			r.changed[k] = true
		}
	}
}

// members plans the sets of addresses that several frontends may need.
func (d *Datapath) members(r *rendering, p *plan, changes []service.Change, full bool) {
	for _, c := range changes {
		recount(r.hairpins, d.state.hairpins, c, localAddrs, full)
		recount(r.reserved, d.state.reserved, c, reservedAddrs, full)
	}
	if full {
		for a := range d.state.hairpins {
			r.hairpins[a] += 0
		}
		for a := range d.state.reserved {
			r.reserved[a] += 0
		}
	}
	p.members("hairpin", d.state.hairpins, r.hairpins, func(a netip.Addr) []byte { return append(a.AsSlice(), a.AsSlice()...) })
	p.members("reserved", d.state.reserved, r.reserved, netip.Addr.AsSlice)
}

// changes returns the frontends that may have to change: those that differ from the last
// table or, if what the kernel holds was just read, all.
func (d *Datapath) changes(want *service.Table, full bool) []service.Change {
	if !full {
		return service.Diff(d.synced, want)
	}
	var all []service.Change
	for f := range want.Frontends() {
		all = append(all, service.Change{New: f})
	}
	return all
}

// services returns the Services of changes, sorted.
func services(changes []service.Change) []service.Name {
	set := map[service.Name]bool{}
	for _, c := range changes {
		for _, f := range [...]*service.Frontend{c.Old, c.New} {
			if f != nil {
				set[f.Service.Name] = true
			}
		}
	}
	return slices.SortedFunc(gomaps.Keys(set), service.Name.Compare)
}

// keys returns the keys of the frontends that the Services of changes have or had.
func (d *Datapath) keys(changes []service.Change, full bool) []service.Key {
	set := map[service.Key]bool{}
	for _, c := range changes {
		set[c.Key()] = true
	}
	if full {
		for k := range d.state.fronts {
			set[k] = true
		}
	} else {
		for _, n := range services(changes) {
			if e := d.synced.Entry(n); e != nil {
				for _, f := range e.Frontends {
					set[f.Key()] = true
				}
			}
		}
	}
	return slices.SortedFunc(gomaps.Keys(set), service.Key.Compare)
}

// entry adds what a Service's frontends and virtual servers shall be. e may be nil.
func (s *state) entry(e *service.Entry, fronts map[service.Key]*front, servers map[id]*server) error {
	if e == nil {
		return nil
	}
	all := pools(e)
	if err := s.place(e.Name, all, servers); err != nil {
		return err
	}
	for _, f := range e.Frontends {
		is := &front{comment: noteOf(f).String(), inside: howTo(f.Internal, f.NodePort(), false)}
		if !f.Internal.Equal(f.External) {
			is.outside = howTo(f.External, f.NodePort(), true)
		}
		if len(f.Sources) > 0 {
			is.guarded, is.sources = true, nft.Ranges(f.Sources, f.Addr.Addr().Is4())
		}
		fronts[f.Key()] = is
	}
	for _, p := range all {
		servers[id{p.at, p.proto}] = &p.server
		for _, at := range p.sides {
			if at.outside {
				fronts[at.key].outsideServer = p.at
			} else {
				fronts[at.key].server = p.at
			}
		}
	}
	return nil
}

// pools returns the virtual servers that a Service needs. Sides of one port with the same
// endpoints share one, so that the counts of connections and the places of clients belong
// to the port. Lists of policy Local stay apart, as affinity must: a client that was sent
// anywhere by one address must not be sent there by another that has only local endpoints.
// What is chosen by the address that was called has a virtual server for each of them.
func pools(e *service.Entry) (all []*pool) {
	type kind struct {
		port  string
		proto service.Proto
		is4   bool
		local bool
		sched string
		stays uint32
		at    service.Key // only for dh
	}
	of := map[kind][]*pool{}
	add := func(f *service.Frontend, r *service.Route, outside bool) {
		if r.Action != service.Forward || len(r.Endpoints) == 0 {
			return
		}
		reals, weighted := realsOf(r.Endpoints)
		k := kind{f.Service.Port, f.Proto, f.Addr.Addr().Is4(), r.Local, scheduler(f.Balance, weighted), persistence(f), service.Key{}}
		if f.Balance == service.DestHash {
			k.at = f.Key()
		}
		i := slices.IndexFunc(of[k], func(p *pool) bool { return gomaps.Equal(p.reals, reals) })
		if i < 0 {
			i = len(of[k])
			p := &pool{server: server{sched: k.sched, persist: k.stays, reals: reals}, proto: k.proto, is4: k.is4}
			of[k] = append(of[k], p)
			all = append(all, p)
		}
		of[k][i].sides = append(of[k][i].sides, side{f.Key(), outside})
	}
	for _, f := range slices.SortedFunc(slices.Values(e.Frontends), func(a, b *service.Frontend) int { return a.Key().Compare(b.Key()) }) {
		add(f, f.Internal, false)
		if !f.Internal.Equal(f.External) {
			add(f, f.External, true)
		}
	}
	return all
}

// realsOf returns endpoints with their weights, which are 1 where nobody asked for any.
func realsOf(eps []service.Endpoint) (all map[netip.AddrPort]uint16, weighted bool) {
	all = make(map[netip.AddrPort]uint16, len(eps))
	for _, e := range eps {
		all[e.Addr] = uint16(lb.Weight(e))
		weighted = weighted || e.Weight > 1
	}
	return all, weighted
}

// place gives each pool an address: the one that its sides have now, if that is theirs,
// so that a virtual server stays as long as its Service port does. taken are virtual
// servers that others got in this rendering.
func (s *state) place(n service.Name, all []*pool, taken map[id]*server) error {
	mine := map[netip.AddrPort]bool{}
	for _, exact := range []bool{true, false} {
		for _, p := range all {
			for _, at := range p.sides {
				was := s.at(at.key)
				a := was.server
				if at.outside {
					a = was.outsideServer
				}
				held := s.servers[id{a, p.proto}]
				if p.at.IsValid() || held == nil || mine[a] || taken[id{a, p.proto}] != nil || !strings.HasPrefix(was.comment, n.String()) {
					continue
				}
				if !exact || gomaps.Equal(held.reals, p.reals) {
					p.at, mine[a] = a, true
				}
			}
		}
	}
	for _, p := range all {
		if p.at.IsValid() {
			continue
		}
		at := func(n uint32) id {
			return id{netip.AddrPortFrom(ownAddr(p.is4, n), serverPortNumber), p.proto}
		}
		next, ok := lb.NextFree(s.next, maxServers, func(n uint32) bool { return s.servers[at(n)] != nil || taken[at(n)] != nil })
		if !ok {
			return errFull
		}
		p.at, s.next = at(next).Addr, next
	}
	return nil
}

// server plans the change of one virtual server from was to is; nil: it is not there.
// Real servers that leave do so at until, at the latest.
func (r *rendering) server(i id, was, is *server, until time.Time) {
	switch {
	case is == nil && was == nil:
		return
	case is == nil:
		r.after = append(r.after, op{cmd: cmdDelServer, id: i})
		return
	case was == nil:
		r.before = append(r.before, op{cmd: cmdNewServer, id: i, server: is})
		was = &server{}
	case was.sched != is.sched || was.persist != is.persist:
		r.before = append(r.before, op{cmd: cmdSetServer, id: i, server: is})
	}
	is.leaving = gomaps.Clone(was.leaving)
	if is.leaving == nil {
		is.leaving = map[netip.AddrPort]time.Time{}
	}
	for _, a := range slices.SortedFunc(gomaps.Keys(is.reals), netip.AddrPort.Compare) {
		cmd := byte(cmdNewReal)
		_, leaves := is.leaving[a]
		switch weight, there := was.reals[a]; {
		case there && weight == is.reals[a]:
			continue
		case there, leaves:
			cmd = cmdSetReal
		}
		delete(is.leaving, a)
		r.before = append(r.before, op{cmd: cmd, id: i, real: a, weight: is.reals[a]})
	}
	for _, a := range slices.SortedFunc(gomaps.Keys(was.reals), netip.AddrPort.Compare) {
		if _, stays := is.reals[a]; stays {
			continue
		}
		if i.Proto != service.UDP && is.drains() {
			is.leaving[a] = until
			r.after = append(r.after, op{cmd: cmdSetReal, id: i, real: a})
			continue
		}
		r.after = append(r.after, op{cmd: cmdDelReal, id: i, real: a})
	}
	if !is.drains() {
		for a := range was.leaving {
			if _, back := is.reals[a]; !back {
				r.after = append(r.after, op{cmd: cmdDelReal, id: i, real: a})
			}
		}
		clear(is.leaving)
	}
}

// A plan is the writes of one Sync to the nft table, in their order.
type plan struct {
	rest    []nft.Write // settings and hairpins
	servers []nft.Write // added or replaced, and guards
	fronts  []nft.Write
	gone    []nft.Write // servers removed
}

func (p *plan) writes() []nft.Write { return slices.Concat(p.rest, p.servers, p.fronts, p.gone) }

// front plans the change of one frontend from was to is.
func (p *plan) front(k service.Key, was, is *front) {
	key, is4, nodePort := frontKey(k), k.Addr.Addr().Is4(), k.Addr.Addr().IsUnspecified()
	hows, servers := maps(nodePort, false)
	outHows, outServers := maps(nodePort, true)
	p.server(name(servers, is4), key, was.server, is.server)
	p.server(name(outServers, is4), key, was.outsideServer, is.outsideServer)
	p.guard(is4, key, was, is)
	// The element for outsiders comes before and leaves after the one for all: without
	// it they would be served by the other.
	if is.outside != 0 {
		p.how(name(outHows, is4), key, was, is, was.outside, is.outside)
	}
	p.how(name(hows, is4), key, was, is, was.inside, is.inside)
	if is.outside == 0 {
		p.how(name(outHows, is4), key, was, is, was.outside, is.outside)
	}
}

func (p *plan) server(set string, key []byte, from, to netip.AddrPort) {
	if from == to {
		return
	}
	w := nft.Write{Set: set, Key: key, Del: from.IsValid(), Add: to.IsValid()}
	if !w.Add {
		p.gone = append(p.gone, w)
		return
	}
	w.Data = serverData(to)
	p.servers = append(p.servers, w)
}

func (p *plan) how(set string, key []byte, was, is *front, from, to how) {
	if from == to && (to == 0 || was.comment == is.comment) {
		return
	}
	w := nft.Write{Set: set, Key: key, Del: from != 0, Add: to != 0}
	if w.Add {
		w.Data, w.Comment = howData(to), is.comment
	}
	p.fronts = append(p.fronts, w)
}

// guard plans who may come in. The guard stands before the frontend opens and leaves
// before the sources do, so that nobody slips in; ranges are replaced at once, because
// the kernel does not take one that overlaps another.
func (p *plan) guard(is4 bool, key []byte, was, is *front) {
	guard := nft.Write{Set: name("guarded", is4), Key: key}
	all := func(list []netipx.IPRange, del bool) (ws []nft.Write) {
		for _, r := range list {
			ws = append(ws, nft.Write{
				Set: name("sources", is4), Del: del, Add: !del,
				Key:  append(slices.Clone(key), r.From().AsSlice()...),
				Last: append(slices.Clone(key), r.To().AsSlice()...),
			})
		}
		return ws
	}
	if !slices.Equal(was.sources, is.sources) {
		if len(is.sources) > 0 {
			p.servers = append(p.servers, all(was.sources, true)...)
			p.servers = append(p.servers, all(is.sources, false)...)
		} else {
			p.gone = append(p.gone, all(was.sources, true)...)
		}
	}
	switch {
	case is.guarded && !was.guarded:
		guard.Add = true
		p.servers = append(p.servers, guard)
	case was.guarded && !is.guarded:
		guard.Del = true
		p.fronts = append(p.fronts, guard)
	}
}

// members plans a set of addresses. is has the new counts of those that may have changed,
// was those of all; key makes an element.
func (p *plan) members(set string, was, is map[netip.Addr]int, key func(netip.Addr) []byte) {
	for a, n := range is {
		if (was[a] > 0) != (n > 0) {
			p.rest = append(p.rest, nft.Write{Set: name(set, a.Is4()), Key: key(a), Add: n > 0, Del: n == 0})
		}
	}
}

func (p *plan) settings(was, is service.Settings) {
	p.rest = append(p.rest, nft.ReplaceLinks(podLinks, was.PodInterfaces, is.PodInterfaces)...)
	for _, is4 := range families {
		p.rest = append(p.rest, nft.ReplacePrefixes(name("service-cidrs", is4), is4, was.ServiceCIDRs, is.ServiceCIDRs)...)
		p.rest = append(p.rest, nft.ReplacePrefixes(name("pods", is4), is4, was.Pods, is.Pods)...)
		p.rest = append(p.rest, nft.ReplacePrefixes(name("nodeport-addresses", is4), is4, was.NodePorts, is.NodePorts)...)
	}
}

// recount counts the addresses that a change needs more or less often. After a full
// comparison the counts are of what is wanted; else they start from those held.
func recount(counts, held map[netip.Addr]int, c service.Change, of func(*service.Frontend) map[netip.Addr]bool, full bool) {
	count := func(f *service.Frontend, d int) {
		for a := range of(f) {
			if _, ok := counts[a]; !ok && !full {
				counts[a] = held[a]
			}
			counts[a] += d
		}
	}
	if !full {
		count(c.Old, -1)
	}
	count(c.New, +1)
}

// reservedAddrs returns the address that f reserves. f may be nil.
func reservedAddrs(f *service.Frontend) map[netip.Addr]bool {
	if f == nil || !f.ClusterIP {
		return nil
	}
	return map[netip.Addr]bool{f.Addr.Addr(): true}
}

// localAddrs returns the addresses of f's endpoints on this node. f may be nil.
func localAddrs(f *service.Frontend) map[netip.Addr]bool {
	if f == nil {
		return nil
	}
	local := map[netip.Addr]bool{}
	for _, r := range [...]*service.Route{f.Internal, f.External} {
		if r == nil {
			continue
		}
		for _, e := range r.Endpoints {
			if e.Local {
				local[e.Addr.Addr()] = true
			}
		}
	}
	return local
}
