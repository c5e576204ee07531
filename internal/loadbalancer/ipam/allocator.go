package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// An Allocator gives addresses to Services. It belongs to one goroutine.
type Allocator struct {
	all        []*Pool
	reserved   spans
	pools      *pools
	namespaces map[string]map[string]string // labels

	records map[api.Name]*record
	served  map[string]int // the number of Services with addresses, by pool
	holders map[netip.Addr]*holder
	sharing map[string]map[netip.Addr]bool // the shared addresses, by sharing key
	used    spans
	outside map[netip.Addr]bool // in use, and in no pool

	dirty   map[api.Name]bool // the Services to decide about
	rebuild bool              // the pools or the reserved addresses have changed
	waiting map[string]*group
	freed   freed
	outcome map[api.Name]*Decision // the result of the running Decide
}

// A record is the Allocator's state of a Service.
type record struct {
	*Service
	have      []netip.Addr
	pool      string   // the origin of have, even if the pool is gone
	group     *group   // where the Service waits; nil if it lacks nothing
	failed    Event    // the last reported failure, without the Service's name
	replaced  *Service // the new Service from Set; nil if there is none
	checkedAs *Service // the Service of the last check; nil if there was none
}

// A holder has the Services with one address.
type holder struct {
	key, backing string
	services     map[*record]bool
	ports        map[Port]*record
}

// New returns an Allocator without pools.
func New() *Allocator {
	return &Allocator{
		pools: newPools(nil, nil), namespaces: map[string]map[string]string{},
		records: map[api.Name]*record{}, served: map[string]int{}, holders: map[netip.Addr]*holder{}, sharing: map[string]map[netip.Addr]bool{}, outside: map[netip.Addr]bool{},
		dirty: map[api.Name]bool{}, waiting: map[string]*group{}, outcome: map[api.Name]*Decision{},
	}
}

// SetPools replaces all pools. Their order does not matter.
func (a *Allocator) SetPools(all []*Pool) { a.all, a.rebuild = all, true }

// Reserve replaces the addresses that no Service may get: those of nodes, of the API server, of ServiceCIDRs and podCIDRs,
// and addresses such as multicast. A Service that has such an address keeps it.
func (a *Allocator) Reserve(all []Range) {
	if now := union(all); !slices.Equal(now, a.reserved) {
		a.reserved, a.rebuild = now, true
	}
}

// SetNamespace stores the labels of a namespace; nil removes it.
func (a *Allocator) SetNamespace(name string, labels map[string]string) {
	if now, ok := a.namespaces[name]; ok == (labels != nil) && maps.Equal(now, labels) {
		return
	}
	if a.namespaces[name] = labels; labels == nil {
		delete(a.namespaces, name)
	}
	selects := func(p *Pool) bool { return p.Allocation != nil && len(p.Allocation.NamespaceSelectors) > 0 }
	if !slices.ContainsFunc(a.all, selects) {
		return
	}
	for n := range a.records {
		if n.Namespace == name {
			a.dirty[n] = true
		}
	}
}

// Set adds or replaces a Service. The Allocator adopts the addresses in the status of a new Service.
func (a *Allocator) Set(s *Service) {
	if r := a.records[s.Name]; r != nil {
		r.replaced = s
	} else {
		a.records[s.Name] = &record{replaced: s}
	}
	a.dirty[s.Name] = true
}

// Remove removes a Service, and frees its addresses.
func (a *Allocator) Remove(name api.Name) {
	if r := a.records[name]; r != nil {
		r.replaced = &Service{Name: name}
		a.dirty[name] = true
	}
}

// Decide assigns free addresses to waiting Services. It returns the changed Services, sorted by name.
func (a *Allocator) Decide() []Decision {
	if a.rebuild {
		a.rebuildPools()
	}
	gone, fresh, known := a.take()
	for _, r := range gone {
		a.dismiss(r)
	}
	for _, r := range fresh {
		a.adopt(r)
	}
	for _, r := range append(known, fresh...) {
		a.reconcile(r)
	}
	a.serve()
	var out []Decision
	for _, d := range a.outcome {
		if r := a.records[d.Name]; r != nil {
			d.Addrs, d.Pool, d.Missing = r.have, r.pool, r.failed.Message
		}
		out = append(out, *d)
	}
	clear(a.outcome)
	slices.SortFunc(out, func(x, y Decision) int { return x.Name.Compare(y.Name) })
	return out
}

// Report returns the use of the pools and their problems, as of the last Decide.
func (a *Allocator) Report() Report {
	var r Report
	for _, p := range a.pools.byName {
		use := p.use()
		use.Services = a.served[p.Name]
		r.Pools = append(r.Pools, use)
	}
	slices.SortFunc(r.Pools, func(x, y PoolUse) int { return strings.Compare(x.Pool, y.Pool) })
	r.Problems = slices.Sorted(slices.Values(a.pools.problems))
	for addr := range a.outside {
		for rec := range a.holders[addr].services {
			r.Kept = append(r.Kept, rec.Name)
		}
	}
	slices.SortFunc(r.Kept, api.Name.Compare)
	r.Kept = slices.Compact(r.Kept)
	return r
}

// rebuildPools computes the pools again. Addresses in use stay in use.
func (a *Allocator) rebuildPools() {
	a.rebuild = false
	a.pools = newPools(a.all, a.reserved)
	clear(a.outside)
	for addr := range a.holders {
		if p := a.pools.owner(addr); p != nil {
			p.inUse[FamilyOf(addr)]++
		} else {
			a.outside[addr] = true
		}
	}
	for name, r := range a.records {
		a.dirty[name] = true
		if len(r.have) == 0 {
			continue
		}
		if now := a.pools.origin(r.have, r.pool); now != r.pool {
			a.setPool(r, now)
			a.changed(r)
		}
	}
}

// take returns the records to decide about, the oldest first, with their new Services. gone are Services that must have no
// addresses any more, fresh are new Services, known are the other ones.
func (a *Allocator) take() (gone, fresh, known []*record) {
	for name := range a.dirty {
		r := a.records[name]
		first := r.Service == nil
		if r.replaced != nil {
			r.Service, r.replaced = r.replaced, nil
		}
		switch {
		case !r.Wanted:
			gone = append(gone, r)
		case first:
			fresh = append(fresh, r)
		default:
			known = append(known, r)
		}
	}
	clear(a.dirty)
	for _, list := range [][]*record{gone, fresh, known} {
		slices.SortFunc(list, func(x, y *record) int { return compareAge(x.Service, y.Service) })
	}
	return gone, fresh, known
}

// adopt assigns the addresses in the status of a new Service, except those that it cannot keep.
func (a *Allocator) adopt(r *record) {
	a.changed(r)
	for _, addr := range r.Assigned {
		var why string
		p := a.pools.owner(addr)
		switch {
		case !slices.Contains(r.missing(r.have), FamilyOf(addr)):
			why = "the Service has no use for it"
		case a.reserved.has(addr) && r.AssignedFrom == "":
			why = "it is a node's, the API server's, in a ServiceCIDR or a podCIDR, or no single machine's"
		case p == nil && r.AssignedFrom == "":
			why = "it is in no pool"
		default:
			why = a.conflict(r, addr)
		}
		if why != "" {
			a.event(r, Event{ReasonCleared, fmt.Sprintf("Address %v of the status is not kept: %s", addr, why), true})
			continue
		}
		a.assign(r, addr)
	}
	if r.have = r.sorted(r.have); len(r.have) > 0 {
		a.setPool(r, a.pools.origin(r.have, r.AssignedFrom))
	}
}

// reconcile releases the addresses that a Service does not need any more, and lets it wait for those that it lacks.
func (a *Allocator) reconcile(r *record) {
	a.leave(r)
	if r.checkedAs != nil && !r.holdsLike(r.checkedAs) {
		a.check(r)
	}
	r.checkedAs = r.Service
	if a.lacks(r) {
		a.wait(r)
	} else if r.failed != (Event{}) {
		r.failed = Event{}
		a.changed(r)
	}
}

// check releases addresses of a changed Service: those that it does not need any more, and those that its own change has
// brought into conflict.
func (a *Allocator) check(r *record) {
	was := r.have
	for _, addr := range r.have {
		if !slices.Contains(r.Families, FamilyOf(addr)) {
			a.release(r, addr)
			a.event(r, Event{ReasonCleared, fmt.Sprintf("Address %v is released: the Service has no use for it", addr), false})
		} else if why := a.conflict(r, addr); why != "" {
			a.release(r, addr)
			a.event(r, Event{ReasonCleared, fmt.Sprintf("Address %v is released: %s", addr, why), true})
		} else {
			a.reassign(r, addr)
		}
	}
	from := r.pool
	if r.have = r.sorted(r.have); len(r.have) == 0 {
		from = ""
	}
	a.setPool(r, a.pools.origin(r.have, from))
	if !slices.Equal(was, r.have) {
		a.changed(r)
	}
}

// dismiss releases the addresses of a Service that must have none.
func (a *Allocator) dismiss(r *record) {
	a.leave(r)
	if len(r.have) > 0 {
		a.changed(r)
	}
	a.release(r, r.have...)
	a.setPool(r, "")
	delete(a.records, r.Name)
}

// setPool stores the pool of a Service's addresses; empty if it has none.
func (a *Allocator) setPool(r *record, pool string) {
	if a.served[r.pool]--; a.served[r.pool] <= 0 {
		delete(a.served, r.pool)
	}
	if r.pool = pool; pool != "" {
		a.served[pool]++
	}
}

// conflict returns the reason why a Service cannot share an address with its holders; empty if it can.
func (a *Allocator) conflict(r *record, addr netip.Addr) string {
	h := a.holders[addr]
	if h == nil || len(h.services) == 1 && h.services[r] {
		return ""
	}
	other := h.oldest(r)
	switch {
	case r.SharingKey == "" || h.key != r.SharingKey:
		return fmt.Sprintf("it is also in use by Service %v, which does not have the same sharing key", other)
	case h.backing != r.Backing:
		return fmt.Sprintf("it is also in use by Service %v, and under externalTrafficPolicy Local both need the same pods: one namespace and selector", other)
	}
	for _, p := range r.Ports {
		if o := h.ports[p]; o != nil && o != r {
			return fmt.Sprintf("port %d/%v is also in use by Service %v", p.Port, p.Proto, o.Name)
		}
	}
	return ""
}

// oldest returns the oldest Service with the address, except r.
func (h *holder) oldest(r *record) api.Name {
	var found *record
	for o := range h.services {
		if o != r && (found == nil || compareAge(o.Service, found.Service) < 0) {
			found = o
		}
	}
	return found.Name
}

// assign gives an address to a Service. There must be no conflict.
func (a *Allocator) assign(r *record, addr netip.Addr) {
	h := a.holders[addr]
	if h == nil {
		h = &holder{services: map[*record]bool{}, ports: map[Port]*record{}}
		a.holders[addr] = h
		a.used = a.used.add(addr)
		if p := a.pools.owner(addr); p != nil {
			p.inUse[FamilyOf(addr)]++
		}
	}
	if p := a.pools.owner(addr); p == nil {
		a.outside[addr] = true
	}
	a.enter(r, addr, h)
	r.have = append(slices.Clone(r.have), addr)
}

// enter adds a Service to the holder of an address, with its ports and its key.
func (a *Allocator) enter(r *record, addr netip.Addr, h *holder) {
	if len(h.services) == 0 {
		h.key, h.backing = r.SharingKey, r.Backing
		if h.key != "" {
			if a.sharing[h.key] == nil {
				a.sharing[h.key] = map[netip.Addr]bool{}
			}
			a.sharing[h.key][addr] = true
		}
	}
	h.services[r] = true
	for _, p := range r.Ports {
		h.ports[p] = r
	}
	a.freed.shared(h.key)
}

// depart is the inverse of enter.
func (a *Allocator) depart(r *record, addr netip.Addr, h *holder) {
	delete(h.services, r)
	maps.DeleteFunc(h.ports, func(_ Port, o *record) bool { return o == r })
	a.freed.shared(h.key)
	if len(h.services) > 0 || h.key == "" {
		return
	}
	if delete(a.sharing[h.key], addr); len(a.sharing[h.key]) == 0 {
		delete(a.sharing, h.key)
	}
}

// reassign updates the ports and the key of a Service at an address.
func (a *Allocator) reassign(r *record, addr netip.Addr) {
	h := a.holders[addr]
	a.depart(r, addr, h)
	a.enter(r, addr, h)
	a.freed.again(addr)
}

// release frees addresses of a Service.
func (a *Allocator) release(r *record, addrs ...netip.Addr) {
	for _, addr := range addrs {
		h := a.holders[addr]
		a.depart(r, addr, h)
		if len(h.services) > 0 {
			a.freed.again(addr)
			continue
		}
		delete(a.holders, addr)
		delete(a.outside, addr)
		a.used = a.used.remove(addr)
		if p := a.pools.owner(addr); p != nil {
			p.inUse[FamilyOf(addr)]--
			a.freed.again(addr)
			a.freed.of(p.Name)
		}
	}
	r.have = slices.DeleteFunc(slices.Clone(r.have), func(x netip.Addr) bool { return slices.Contains(addrs, x) })
}

// changed adds a Service to the result of Decide.
func (a *Allocator) changed(r *record) *Decision {
	d := a.outcome[r.Name]
	if d == nil {
		d = &Decision{Name: r.Name}
		a.outcome[r.Name] = d
	}
	return d
}

func (a *Allocator) event(r *record, e Event) {
	d := a.changed(r)
	d.Events = append(d.Events, e)
}
