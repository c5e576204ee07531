package ipam

import (
	"container/heap"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A group is a set of waiting Services with equal wishes. If one of them cannot have an address, no other one can. So the
// Allocator tries a change on one Service of each group only.
type group struct {
	want    string    // the key of the group: a text of the wishes
	members []*record // the oldest first
	// The wait may end if one of these addresses or an address of these pools becomes free, or if Services with this key
	// share other addresses.
	pools []string
	addrs []netip.Addr
	key   string
}

// wait adds a Service to the waiting ones, and marks its group for the next serve.
func (a *Allocator) wait(r *record) {
	g := a.groupOf(r)
	if known := a.waiting[g.want]; known != nil {
		g = known
	} else {
		a.waiting[g.want] = g
	}
	i, _ := slices.BinarySearchFunc(g.members, r, func(m, r *record) int { return compareAge(m.Service, r.Service) })
	g.members = slices.Insert(g.members, i, r)
	r.group = g
	a.freed.try(g)
}

// leave removes a Service from the waiting ones.
func (a *Allocator) leave(r *record) {
	g := r.group
	if g == nil {
		return
	}
	r.group = nil
	i := slices.Index(g.members, r)
	if g.members = slices.Delete(g.members, i, i+1); len(g.members) == 0 {
		delete(a.waiting, g.want)
	}
}

// groupOf returns the group of a Service. It creates the group if necessary.
func (a *Allocator) groupOf(r *record) *group {
	g := &group{addrs: r.Addrs, key: r.SharingKey}
	switch {
	case len(r.have) > 0 && len(r.Addrs) == 0 && (r.Pool == "" || r.Pool == r.pool):
		g.pools = []string{r.pool}
	case len(r.Addrs) > 0:
	case r.Pool != "":
		g.pools = []string{r.Pool}
	default:
		for _, p := range a.pools.candidates(r.Service, a.namespaces[r.Namespace]) {
			g.pools = append(g.pools, p.Name)
		}
	}
	var b strings.Builder
	fmt.Fprint(&b, r.Families, r.PreferDual, g.pools)
	if r.Pool != "" || len(r.Addrs) > 0 { // the pool may be for some Services only
		fmt.Fprint(&b, " asks ", r.Pool, r.Addrs, a.mayAsk(r))
	}
	if r.SharingKey != "" {
		fmt.Fprintf(&b, " shares %q %q %v", r.SharingKey, r.Backing, r.Ports)
	}
	if r.Refused != "" {
		fmt.Fprint(&b, " refused ", r.Refused)
	}
	if len(r.have) > 0 {
		fmt.Fprint(&b, " has ", r.have)
	}
	g.want = b.String()
	return g
}

// mayAsk reports for each pool that a Service asks for whether the pool is for the Service.
func (a *Allocator) mayAsk(r *record) (may []bool) {
	asked := []*poolState{a.pools.byName[r.Pool]}
	for _, addr := range r.Addrs {
		asked = append(asked, a.pools.owner(addr))
	}
	for _, p := range asked {
		may = append(may, p != nil && p.serves(r.Service, a.namespaces[r.Namespace]))
	}
	return may
}

// freed collects the changes since the last serve that may end a wait.
type freed struct {
	groups map[*group]bool     // must be tried
	pools  map[string]bool     // have a free address
	addrs  map[netip.Addr]bool // are free, or shared by other Services
	keys   map[string]bool     // have Services that share other addresses
}

func (f *freed) try(g *group) { add(&f.groups, g) }

func (f *freed) again(a netip.Addr) { add(&f.addrs, a) }

func (f *freed) of(pool string) { add(&f.pools, pool) }

func (f *freed) shared(key string) {
	if key != "" {
		add(&f.keys, key)
	}
}

func add[K comparable](set *map[K]bool, k K) {
	if *set == nil {
		*set = map[K]bool{}
	}
	(*set)[k] = true
}

// concerns reports whether the wait of a group may have ended.
func (f *freed) concerns(g *group) bool {
	return f.groups[g] || f.keys[g.key] ||
		slices.ContainsFunc(g.pools, func(p string) bool { return f.pools[p] }) ||
		slices.ContainsFunc(g.addrs, func(a netip.Addr) bool { return f.addrs[a] })
}

// serve gives addresses to the waiting Services, the oldest first, until no more can be given.
func (a *Allocator) serve() {
	queue := &byAge{}
	queued := map[*group]bool{}
	enqueue := func() {
		if len(a.freed.groups)+len(a.freed.pools)+len(a.freed.addrs)+len(a.freed.keys) == 0 {
			return
		}
		f := a.freed
		a.freed = freed{}
		for _, g := range a.waiting {
			if !queued[g] && f.concerns(g) {
				queued[g] = true
				heap.Push(queue, g)
			}
		}
	}
	for enqueue(); queue.Len() > 0; enqueue() {
		g := heap.Pop(queue).(*group)
		delete(queued, g)
		r := g.members[0]
		c, failed := a.choose(r)
		if failed.Reason != "" {
			a.reportWaiting(g, failed)
			continue
		}
		a.leave(r)
		a.give(r, c)
		if a.lacks(r) {
			a.wait(r)        // for the second address
			heap.Init(queue) // the group may have an older head now
		}
		if len(g.members) > 0 {
			a.freed.try(g)
		}
	}
	a.freed = freed{}
}

// reportWaiting adds an event with the reason to each Service of a group, once.
func (a *Allocator) reportWaiting(g *group, why Event) {
	for _, r := range g.members {
		why := why
		if r.Refused != "" && len(r.have) > 0 {
			why.Reason = ReasonRefused
		}
		if r.failed != why {
			r.failed = why
			a.event(r, Event{why.Reason, fmt.Sprintf("Failed to allocate IP for %q: %s", r.Name, why.Message), why.Warning})
		}
	}
}

// byAge is a heap of groups. The group with the oldest Service is the first.
type byAge []*group

// Len is a part of heap.Interface.
func (h byAge) Len() int { return len(h) }

// Less is a part of heap.Interface.
func (h byAge) Less(i, j int) bool {
	return compareAge(h[i].members[0].Service, h[j].members[0].Service) < 0
}

// Swap is a part of heap.Interface.
func (h byAge) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is a part of heap.Interface.
func (h *byAge) Push(x any) { *h = append(*h, x.(*group)) }

// Pop is a part of heap.Interface.
func (h *byAge) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
