package userspace

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// ownedSets are the sets of addresses of which a packet to an unused port is refused.
var ownedSets = [2]struct {
	set nftset.Set
	of  func(*service.Frontend, func(netip.Addr))
}{
	{nftset.ClusterIPs, nftset.ClusterIPsOf},
	{nftset.ExternalAddresses, nftset.ExternalAddressesOf},
}

// ownedAddresses has the addresses of each of ownedSets.
type ownedAddresses [2]nftset.Counts

// kernelState is the complete state of the datapath in the kernel.
type kernelState struct {
	elements map[elementID]element // elements of frontends
	sources  map[service.Key]*nftset.Sources
	settings service.Settings
	owned    ownedAddresses
	affinity map[affinityKey]affinityEntry
	orphans  map[elementID]element
}

// read reads the state from the kernel.
func (d *Datapath) read(ctx context.Context) (*kernelState, error) {
	r := d.rules.Reader(ctx)
	h := &kernelState{
		elements: map[elementID]element{}, sources: map[service.Key]*nftset.Sources{}, owned: ownedAddresses{{}, {}},
		affinity: map[affinityKey]affinityEntry{}, orphans: map[elementID]element{},
	}
	for _, is4 := range nftset.Families {
		for _, s := range frontendSets {
			h.readElements(r, s, is4, h.elements)
		}
		h.readElements(r, orphanedConnections, is4, h.orphans)
		r.Sources(is4, func(k service.Key) *nftset.Sources { return nftset.Ensure(h.sources, k) })
		for i, one := range ownedSets {
			r.Addrs(one.set, is4, func(a netip.Addr) { h.owned[i][a] = 1 })
		}
		readAffinity(r, is4, h.affinity)
	}
	h.settings = r.Settings()
	return h, r.Err()
}

func (h *kernelState) readElements(r *nftset.Reader, s nftset.Set, is4 bool, into map[elementID]element) {
	r.Each(s.Name(is4), func(e nft.Element) error {
		one := element{set: s, is4: is4, key: string(e.Key), data: string(e.Data), comment: e.Comment}
		into[one.id()] = one
		return nil
	})
}

// table returns the state as a Table.
func (h *kernelState) table() (*service.Table, error) {
	all, err := parse(slices.Collect(maps.Values(h.elements)))
	if err != nil {
		return nil, fmt.Errorf("parse table %s: %w", tableName, err)
	}
	for _, f := range all {
		if s := h.sources[f.Key()]; s != nil {
			f.Sources = s.Prefixes()
		}
	}
	return service.NewTable(h.settings, all), nil
}

// sourcesOf returns the sources of a frontend. f may be nil.
func sourcesOf(f *service.Frontend) nftset.Sources {
	if f == nil {
		return nftset.Sources{}
	}
	return nftset.SourcesOf(f)
}

// A changeset has the writes of one change, in order: additions, then elements that lead packets to the proxy, then
// removals. Every frontend is complete between two of these steps.
type changeset struct {
	settings, early, entries, open, late []nft.Write

	frontends map[service.Key]bool // the frontends that change
	owned     ownedAddresses       // the counts that change
}

func newChangeset() *changeset { return &changeset{frontends: map[service.Key]bool{}} }

func (p *changeset) writes() []nft.Write {
	return slices.Concat(p.settings, p.early, p.entries, p.open, p.late)
}

// change adds the writes that replace the elements was of a frontend by the elements is.
func (p *changeset) change(k service.Key, was, is []element) {
	had := map[elementID]element{}
	for _, e := range was {
		had[e.id()] = e
	}
	for _, e := range is {
		old, ok := had[e.id()]
		delete(had, e.id())
		if ok && old == e {
			continue
		}
		p.frontends[k] = true
		p.write(e, ok, true)
	}
	for _, e := range was {
		if _, gone := had[e.id()]; gone {
			p.frontends[k] = true
			p.write(e, true, false)
		}
	}
}

func (p *changeset) write(e element, del, add bool) {
	part := &p.early
	switch {
	case e.set == nftset.Frontends || e.set == nftset.Nodeports:
		part = &p.entries
	case !add:
		part = &p.late
	}
	*part = append(*part, e.write(del, add))
}

// sources adds the writes that replace the sources was of a frontend by the sources is.
func (p *changeset) sources(k service.Key, was, is nftset.Sources) {
	if was.Equal(is) {
		return
	}
	c := nftset.ChangeSources(k, was, is)
	p.early, p.open, p.late = append(p.early, c.Before...), append(p.open, c.Open...), append(p.late, c.After...)
	p.frontends[k] = true
}

// shared adds the writes of the settings and of ownedSets.
func (p *changeset) shared(was, is service.Settings, held ownedAddresses, changes []service.Change, full bool) {
	p.settings = nftset.ChangeSettings(was, is)
	for i, one := range ownedSets {
		p.owned[i] = held[i].Change(changes, one.of, full)
		add, del := held[i].Writes(one.set, p.owned[i], netip.Addr.AsSlice)
		p.early, p.late = append(p.early, add...), append(p.late, del...)
	}
}

// incremental returns the changeset for the changes between two tables.
func incremental(changes []service.Change) *changeset {
	p := newChangeset()
	for _, c := range changes {
		was, is := renderChange(c.Old, c.New)
		p.change(c.Key(), was, is)
		p.sources(c.Key(), sourcesOf(c.Old), sourcesOf(c.New))
	}
	return p
}

// fullChangeset returns the changeset from the state of the kernel to a table.
func fullChangeset(h *kernelState, to *service.Table) *changeset {
	p := newChangeset()
	left, sources := maps.Clone(h.elements), maps.Clone(h.sources)
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
		var had nftset.Sources
		if s := sources[f.Key()]; s != nil {
			had = *s
			delete(sources, f.Key())
		}
		p.sources(f.Key(), had, sourcesOf(f))
	}
	for _, e := range left {
		k, _, err := e.frontend()
		if err != nil {
			k = service.Key{}
		}
		p.change(k, []element{e}, nil)
	}
	for k, s := range sources {
		p.sources(k, *s, nftset.Sources{})
	}
	return p
}
