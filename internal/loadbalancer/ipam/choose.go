package ipam

import (
	"fmt"
	"net/netip"
	"slices"
)

// lacks reports whether a Service lacks an address that it asks for.
func (a *Allocator) lacks(r *record) bool {
	switch {
	case r.Refused != "":
		return true
	case len(r.Addrs) > 0:
		return !sameAddrs(r.have, r.Addrs)
	}
	return len(r.missing(r.have)) > 0 || r.Pool != "" && r.pool != r.Pool
}

// A choice is the addresses that a Service could have now, old ones included.
type choice struct {
	addrs []netip.Addr
	pool  string
}

// choose returns the addresses that a waiting Service can have now, or an Event with the reason why there are none.
func (a *Allocator) choose(r *record) (choice, Event) {
	failed := func(format string, args ...any) (choice, Event) {
		return choice{}, Event{ReasonFailed, fmt.Sprintf(format, args...), true}
	}
	switch {
	case r.Refused != "":
		return failed("%s", r.Refused)
	case len(r.Addrs) > 0:
		c, why := a.chooseAddrs(r)
		if why != "" {
			return failed("%s", why)
		}
		return c, Event{}
	case r.Pool != "" && (len(r.have) == 0 || r.pool != r.Pool):
		p := a.pools.byName[r.Pool]
		switch {
		case p == nil:
			return failed("unknown pool %q", r.Pool)
		case !p.serves(r.Service, a.namespaces[r.Namespace]):
			return failed("pool %q is not for this Service", r.Pool)
		}
		if c, ok := a.pick(r, []*poolState{p}); ok {
			return c, Event{}
		}
		return failed("no available IPs in pool %q", r.Pool)
	case len(r.have) == 0:
		if c, ok := a.pick(r, a.pools.candidates(r.Service, a.namespaces[r.Namespace])); ok {
			return c, Event{}
		}
		if len(a.pools.byName) == 0 {
			return failed("there is no IPAddressPool")
		}
		return failed("no available IPs")
	}
	c, ok := a.addFamily(r)
	if ok {
		return c, Event{}
	}
	if r.PreferDual {
		return choice{}, Event{ReasonAdditionalFailed, fmt.Sprintf("no available IPs of the other family in pool %q", r.pool), false}
	}
	return failed("no available IPs of the other family in pool %q", r.pool)
}

// chooseAddrs returns the addresses that the Service asks for, or the reason why it cannot have them.
func (a *Allocator) chooseAddrs(r *record) (choice, string) {
	if missing := r.missing(r.Addrs); len(missing) > 0 && !(r.PreferDual && len(missing) < len(r.Families)) || len(r.Addrs)+len(missing) != len(r.Families) {
		return choice{}, fmt.Sprintf("requested addresses %v do not match the address families of the Service", r.Addrs)
	}
	c := choice{addrs: r.sorted(r.Addrs)}
	for _, addr := range c.addrs {
		p := a.pools.owner(addr)
		switch {
		case p == nil:
			return choice{}, fmt.Sprintf("requested address %v is in no pool", addr)
		case r.Pool != "" && p.Name != r.Pool:
			return choice{}, fmt.Sprintf("requested address %v is not in the requested pool %q", addr, r.Pool)
		case c.pool != "" && p.Name != c.pool:
			return choice{}, fmt.Sprintf("requested addresses %v are in different pools", r.Addrs)
		case !p.serves(r.Service, a.namespaces[r.Namespace]):
			return choice{}, fmt.Sprintf("pool %q is not for this Service", p.Name)
		case slices.Contains(r.have, addr): // the Service keeps it, even if the pool does not give it any more
		case !p.gives(addr):
			return choice{}, fmt.Sprintf("requested address %v is not one that pool %q gives", addr, p.Name)
		}
		if why := a.conflict(r, addr); why != "" {
			return choice{}, fmt.Sprintf("requested address %v: %s", addr, why)
		}
		c.pool = p.Name
	}
	return c, ""
}

// pick returns addresses of all families that a Service needs, from the first pool that has both. If one family is
// enough, the second choice is the first pool with the primary family, and the third is a pool with the other family.
func (a *Allocator) pick(r *record, from []*poolState) (choice, bool) {
	var second, third *choice
	for _, p := range from {
		c := choice{pool: p.Name}
		for _, f := range r.Families {
			if addr := a.free(r, p, f); addr.IsValid() {
				c.addrs = append(c.addrs, addr)
			}
		}
		switch {
		case len(c.addrs) == 0:
		case len(c.addrs) == len(r.Families):
			return c, true
		case FamilyOf(c.addrs[0]) == r.Families[0] && second == nil:
			second = &c
		case third == nil:
			third = &c
		}
	}
	if r.PreferDual {
		for _, c := range []*choice{second, third} {
			if c != nil {
				return *c, true
			}
		}
	}
	return choice{}, false
}

// addFamily returns the Service's address and one of the missing family from the same pool.
func (a *Allocator) addFamily(r *record) (choice, bool) {
	p := a.pools.byName[r.pool]
	if p == nil {
		return choice{}, false
	}
	c := choice{addrs: slices.Clone(r.have), pool: r.pool}
	for _, f := range r.missing(r.have) {
		addr := a.free(r, p, f)
		if !addr.IsValid() {
			return choice{}, false
		}
		c.addrs = append(c.addrs, addr)
	}
	c.addrs = r.sorted(c.addrs)
	return c, true
}

// free returns the address of a pool that a Service gets next: an address that it can share, or the first free one. The
// zero Addr means none.
func (a *Allocator) free(r *record, p *poolState, f Family) netip.Addr {
	var best netip.Addr
	for addr := range a.sharing[r.SharingKey] { // the empty key has no addresses
		if FamilyOf(addr) == f && (!best.IsValid() || addr.Less(best)) && a.pools.owner(addr) == p && p.gives(addr) && a.conflict(r, addr) == "" {
			best = addr
		}
	}
	if best.IsValid() {
		return best
	}
	for _, part := range p.ranges {
		if FamilyOf(part.First) != f {
			continue
		}
		if addr := a.used.firstFree(part, p.AvoidBuggyIPs); addr.IsValid() {
			return addr
		}
	}
	return netip.Addr{}
}

// give assigns the addresses of a choice to a Service.
func (a *Allocator) give(r *record, c choice) {
	had := r.have
	gone := slices.DeleteFunc(slices.Clone(had), func(x netip.Addr) bool { return slices.Contains(c.addrs, x) })
	a.release(r, gone...)
	var fresh []string
	for _, addr := range c.addrs {
		if !slices.Contains(had, addr) {
			a.assign(r, addr)
			fresh = append(fresh, addr.String())
		}
	}
	r.have, r.failed = r.sorted(r.have), Event{}
	a.setPool(r, c.pool)
	if len(gone) > 0 {
		a.event(r, Event{ReasonCleared, fmt.Sprintf("Addresses %v are released for those that the Service asks for", gone), false})
	}
	what := "IP"
	if len(had) > len(gone) {
		what = "additional IP"
	}
	a.event(r, Event{ReasonAllocated, fmt.Sprintf("Assigned %s %q", what, fresh), false})
}
