package nftables

import (
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A plan is the writes of some frontends in their order. Between two of its transactions
// every frontend is whole: what a way needs is there before the first packet can take
// it, and leaves after the last one could.
type plan struct {
	before []nft.Write // added or replaced: what ways need
	scoped []nft.Write // ways of those to look closer at
	fronts []nft.Write
	gone   []nft.Write
}

// writes returns them in order. Those of one set stand together, so that they share
// messages; it is as good that guarded comes before sources in gone, because a guard
// without sources lets nobody in.
func (p *plan) writes() []nft.Write {
	for _, ws := range [...][]nft.Write{p.before, p.scoped, p.fronts, p.gone} {
		slices.SortStableFunc(ws, func(a, b nft.Write) int { return strings.Compare(a.Set, b.Set) })
	}
	return slices.Concat(p.before, p.scoped, p.fronts, p.gone)
}

// frontend plans the change of one frontend from was to is.
func (p *plan) frontend(k service.Key, was, is *held) {
	key, is4, nodePort := frontKey(k), k.Addr.Addr().Is4(), k.Addr.Addr().IsUnspecified()
	entry, in, out, eps := services, inside, outside, endpoints
	if nodePort {
		entry, in, out, eps = nodeport, nodeportInside, nodeportOutside, nodeportEndpoints
	}
	p.slots(eps.name(is4), key, 0, was.slots, is.slots)
	from, to := was.rare(), is.rare()
	p.slots(eps.name(is4), key, outsideOffset, from.outsideSlots, to.outsideSlots)
	p.guard(is4, key, &from, &to)
	p.sticky(stickySet(nodePort, false).name(is4), key, sticker{was.name, from.id, from.class, from.seconds, from.local}, sticker{is.name, to.id, to.class, to.seconds, to.local})
	p.sticky(stickySet(nodePort, true).name(is4), key, sticker{was.name, from.outsideID, from.class, from.seconds, from.outsideLocal}, sticker{is.name, to.outsideID, to.class, to.seconds, to.outsideLocal})
	p.tallies(k, was.tallies, is.tallies)
	p.way(in.name(is4), key, from.inside, to.inside)
	p.way(out.name(is4), key, from.outside, to.outside)
	if was.entry != is.entry || is.entry != 0 && was.comment() != is.comment() {
		w := nft.Write{Set: entry.name(is4), Key: key, Del: was.entry != 0, Add: is.entry != 0}
		if w.Add {
			w.Data, w.Comment = howData(is.entry), is.comment()
		}
		p.fronts = append(p.fronts, w)
	}
}

// way plans how clients inside or outside are treated, after a closer look.
func (p *plan) way(set string, key []byte, from, to how) {
	switch {
	case from == to:
	case to == 0:
		p.gone = append(p.gone, nft.Write{Set: set, Key: key, Del: true})
	default:
		p.scoped = append(p.scoped, nft.Write{Set: set, Key: key, Data: howData(to), Del: from != 0, Add: true})
	}
}

// A sticker is an id as a frontend has it.
type sticker struct {
	name    string
	id      id
	class   class
	seconds uint32
	local   bool
}

// sticky plans the id of a frontend. It is there before the way that asks for it.
func (p *plan) sticky(set string, key []byte, from, to sticker) {
	if from == to || from.id == 0 && to.id == 0 {
		return
	}
	w := nft.Write{Set: set, Key: key, Del: from.id != 0, Add: to.id != 0}
	if !w.Add {
		p.gone = append(p.gone, w)
		return
	}
	w.Data = idData(to.class.in(to.id))
	w.Comment = stickyName{to.name, false, to.local}.comment(to.seconds)
	p.before = append(p.before, w)
}

// guard plans who may come in. The guard stands before the frontend opens and leaves
// after it has closed, or when nobody looks for it any more; ranges are replaced at
// once, because the kernel does not take one that overlaps another.
func (p *plan) guard(is4 bool, key []byte, was, is *more) {
	guard := nft.Write{Set: guarded.name(is4), Key: key}
	all := func(list []netipx.IPRange, del, add bool) []nft.Write {
		var ws []nft.Write
		for _, r := range list {
			ws = append(ws, nft.Write{
				Set: sources.name(is4), Del: del, Add: add,
				Key:  append(slices.Clone(key), r.From().AsSlice()...),
				Last: append(slices.Clone(key), r.To().AsSlice()...),
			})
		}
		return ws
	}
	if !slices.Equal(was.sources, is.sources) {
		if len(is.sources) > 0 {
			p.before = append(p.before, all(was.sources, true, false)...)
			p.before = append(p.before, all(is.sources, false, true)...)
		} else {
			p.gone = append(p.gone, all(was.sources, true, false)...)
		}
	}
	switch {
	case is.guarded && !was.guarded:
		guard.Add = true
		p.before = append(p.before, guard)
	case was.guarded && !is.guarded:
		guard.Del = true
		p.gone = append(p.gone, guard)
	}
}

func (p *plan) slots(set string, front []byte, offset uint32, was, is []slot) {
	at := func(list []slot, i int) slot {
		if i < len(list) {
			return list[i]
		}
		return slot{}
	}
	for i := range max(len(was), len(is)) {
		from, to := at(was, i), at(is, i)
		if from == to {
			continue
		}
		w := nft.Write{Set: set, Key: slotKey(front, offset+uint32(i)), Del: from.ip.IsValid(), Add: to.ip.IsValid()}
		if !w.Add {
			p.gone = append(p.gone, w)
			continue
		}
		w.Data, w.Comment = endpointData(to.addr()), weightComment(to.weight)
		p.before = append(p.before, w)
	}
}

// members plans a set of addresses that several frontends may need. is has the new
// counts of those that may have changed, was those of all; key makes an element.
func (p *plan) members(s set, was, is map[netip.Addr]int, key func(netip.Addr) []byte) {
	for a, n := range is {
		w := nft.Write{Set: s.name(a.Is4()), Key: key(a), Add: n > 0, Del: n == 0}
		switch {
		case (was[a] > 0) == (n > 0):
		case n > 0:
			p.before = append(p.before, w)
		default:
			p.gone = append(p.gone, w)
		}
	}
}

// hairpinKey is an address as source and destination.
func hairpinKey(a netip.Addr) []byte { return append(a.AsSlice(), a.AsSlice()...) }

// settings plans the facts about the node.
func (p *plan) settings(was, is *facts) {
	p.before = append(p.before, nft.ReplaceLinks(podLinks, was.links, is.links)...)
	for _, f := range families {
		for _, list := range [...]struct {
			set set
			was []netip.Prefix
			is  []netip.Prefix
		}{
			{serviceCIDRs, was.services, is.services}, {pods, was.pods, is.pods}, {nodeportAddresses, was.nodePorts, is.nodePorts},
		} {
			p.before = append(p.before, nft.ReplacePrefixes(list.set.name(f.is4), f.is4, list.was, list.is)...)
		}
	}
	for _, a := range was.hosts {
		if !slices.Contains(is.hosts, a) {
			p.before = append(p.before, nft.Write{Set: nodeportHosts.name(a.Is4()), Key: a.AsSlice(), Del: true})
		}
	}
	for _, a := range is.hosts {
		if !slices.Contains(was.hosts, a) {
			p.before = append(p.before, nft.Write{Set: nodeportHosts.name(a.Is4()), Key: a.AsSlice(), Add: true})
		}
	}
}
