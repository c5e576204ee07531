package userspace

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// held is what the kernel holds of a table.
type held struct {
	elements map[id]element
	settings service.Settings
	reserved map[netip.Addr]bool
}

// families are both, as IPv4 or not.
var families = [...]bool{true, false}

// read returns what the kernel holds.
func read(ctx context.Context, t *nft.Table) (*held, error) {
	h := &held{elements: map[id]element{}, reserved: map[netip.Addr]bool{}}
	for _, is4 := range families {
		for _, s := range perFrontend {
			err := t.Elements(ctx, s.name(is4), func(e nft.Element) error {
				one := element{set: s, is4: is4, key: string(e.Key), last: string(e.Last), data: string(e.Data), comment: e.Comment}
				h.elements[one.id()] = one
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		err := t.Elements(ctx, reserved.name(is4), func(e nft.Element) error {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				h.reserved[a] = true
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for s, into := range map[set]*[]netip.Prefix{
			pods: &h.settings.Pods, nodeportAddrs: &h.settings.NodePorts, serviceCIDRs: &h.settings.ServiceCIDRs,
		} {
			all, err := t.Prefixes(ctx, s.name(is4))
			if err != nil {
				return nil, err
			}
			*into = append(*into, all...)
		}
	}
	var err error
	h.settings.PodInterfaces, err = t.Links(ctx, podLinks)
	return h, err
}

// table returns it in the words of a Table.
func (h *held) table() (*service.Table, error) {
	all, err := parse(slices.Collect(maps.Values(h.elements)))
	if err != nil {
		return nil, fmt.Errorf("make sense of table %s: %w", tableName, err)
	}
	return service.NewTable(h.settings, all), nil
}

// A plan is what must be written, in three parts: what may come early, what leads
// packets to the proxy, and what may go then. Frontends are never half there.
type plan struct {
	early, steer, late []nft.Write
	fronts             map[service.Key]bool
	// has and had say which addresses are reserved by how many frontends more or less.
	reserve map[netip.Addr]int
}

func newPlan() *plan {
	return &plan{fronts: map[service.Key]bool{}, reserve: map[netip.Addr]int{}}
}

func (p *plan) writes() []nft.Write { return slices.Concat(p.early, p.steer, p.late) }

// change plans that a frontend's elements become others.
func (p *plan) change(k service.Key, was, is []element) {
	had := map[id]element{}
	for _, e := range was {
		had[e.id()] = e
	}
	for _, e := range is {
		old, ok := had[e.id()]
		delete(had, e.id())
		if ok && old == e {
			continue
		}
		p.fronts[k] = true
		p.put(e, ok, true)
	}
	for _, e := range was {
		if _, gone := had[e.id()]; gone {
			p.fronts[k] = true
			p.put(e, true, false)
		}
	}
}

func (p *plan) put(e element, del, add bool) {
	part := &p.early
	switch {
	case e.set == frontends || e.set == nodeports:
		part = &p.steer
	case !add:
		part = &p.late
	}
	*part = append(*part, e.write(del, add))
}

// incremental plans the way from one table to another.
func incremental(from, to *service.Table) *plan {
	p := newPlan()
	for _, c := range service.Diff(from, to) {
		p.change(c.Key(), render(c.Old), render(c.New))
		p.count(c.Old, -1)
		p.count(c.New, +1)
	}
	return p
}

// full plans the way from what the kernel holds to a table.
func full(h *held, to *service.Table) *plan {
	p := newPlan()
	left := maps.Clone(h.elements)
	for f := range to.Frontends() {
		is := render(f)
		var was []element
		for _, e := range is {
			if old, ok := left[e.id()]; ok {
				was = append(was, old)
				delete(left, e.id())
			}
		}
		p.change(f.Key(), was, is)
		p.count(f, +1)
	}
	for _, e := range left {
		k, _, err := e.front()
		if err != nil {
			k = service.Key{}
		}
		p.change(k, []element{e}, nil)
	}
	return p
}

func (p *plan) count(f *service.Frontend, n int) {
	if f != nil && f.ClusterIP {
		p.reserve[f.Addr.Addr()] += n
	}
}

// reserving plans the set of reserved addresses. uses are counts that the caller keeps
// of frontends that reserve an address; holds says what the kernel has, nil: as uses.
func (p *plan) reserving(uses map[netip.Addr]int, holds map[netip.Addr]bool) (now map[netip.Addr]int) {
	now = map[netip.Addr]int{}
	for a, n := range p.reserve {
		now[a] = uses[a] + n
	}
	has := func(a netip.Addr) bool {
		if holds != nil {
			return holds[a]
		}
		return uses[a] > 0
	}
	one := func(a netip.Addr) element { return element{set: reserved, is4: a.Is4(), key: string(a.AsSlice())} }
	for a, n := range now {
		switch {
		case n > 0 && !has(a):
			p.early = append(p.early, one(a).write(false, true))
		case n == 0 && has(a):
			p.late = append(p.late, one(a).write(true, false))
		}
	}
	for a := range holds {
		if now[a] == 0 && p.reserve[a] == 0 {
			p.late = append(p.late, one(a).write(true, false))
		}
	}
	return now
}

// settings plans a change of settings. Sets of intervals are written anew, each in one
// transaction with all others, so they come first.
func (p *plan) settings(was, is service.Settings) {
	var ws []nft.Write
	for _, is4 := range families {
		ws = append(ws, nft.ReplacePrefixes(pods.name(is4), is4, was.Pods, is.Pods)...)
		ws = append(ws, nft.ReplacePrefixes(nodeportAddrs.name(is4), is4, was.NodePorts, is.NodePorts)...)
		ws = append(ws, nft.ReplacePrefixes(serviceCIDRs.name(is4), is4, was.ServiceCIDRs, is.ServiceCIDRs)...)
	}
	ws = append(ws, nft.ReplaceLinks(podLinks, was.PodInterfaces, is.PodInterfaces)...)
	p.early = append(ws, p.early...)
}
