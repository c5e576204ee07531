package nftables

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// changed returns the writes for changes of a table that the kernel holds.
func (t *Table) changed(want *networkpolicy.Table, ch *networkpolicy.Changes) (ws []nft.Write) {
	var last []nft.Write // rules that are gone
	for id, c := range ch.Rules {
		if c.To == (networkpolicy.RuleName{}) {
			for _, e := range ruleElements(id, c.From) {
				last = append(last, e.write(false))
			}
			continue
		}
		for _, e := range ruleElements(id, c.To) {
			ws = append(ws, e.write(true))
		}
	}
	for a, c := range ch.Sandboxes {
		ws = replace(ws, sandboxElement(a, c.From), sandboxElement(a, c.To), c.From != networkpolicy.Sandbox{}, c.To != networkpolicy.Sandbox{})
	}
	for d := range ch.Grants {
		for target, c := range ch.Grants[d] {
			ws = t.regrant(ws, networkpolicy.Direction(d), target, c)
		}
	}
	for a, c := range ch.Classes {
		ws = replace(ws, classElement(a, c.From), classElement(a, c.To), c.From != 0, c.To != 0)
	}
	for p, c := range ch.Ports {
		ws = replace(ws, portElement(p, c.From), portElement(p, c.To), c.From != 0, c.To != 0)
	}
	for p, c := range ch.Prefixes {
		ws = replace(ws, prefixElement(p, c.From), prefixElement(p, c.To), c.From != 0, c.To != 0)
	}
	for d := range ch.Views {
		for a, c := range ch.Views[d] {
			d := networkpolicy.Direction(d)
			ws = replace(ws, viewElement(d, a, c.From), viewElement(d, a, c.To), c.From != 0, c.To != 0)
		}
	}
	if ch.Networks {
		ws = append(ws, replaceNetworks(t.networks, want.Networks)...)
	}
	ws = isolate(ws, want, ch)
	return append(ws, last...)
}

// replace appends a write that changes from into to, or adds to, or deletes from.
func replace(ws []nft.Write, from, to element, had, has bool) []nft.Write {
	switch {
	case had && has:
		w := to.write(true)
		w.Del = true
		return append(ws, w)
	case had:
		return append(ws, from.write(false))
	}
	return append(ws, to.write(true))
}

// regrant changes the segments of a target. Deletions come first, because ranges must not overlap.
func (t *Table) regrant(ws []nft.Write, d networkpolicy.Direction, to networkpolicy.Target, c networkpolicy.Change[[]networkpolicy.Segment]) []nft.Write {
	for _, s := range c.From {
		if !slices.Contains(c.To, s) {
			ws = append(ws, t.grantElement(d, to, s).write(false))
		}
	}
	for _, s := range c.To {
		if !slices.Contains(c.From, s) {
			ws = append(ws, t.grantElement(d, to, s).write(true))
		}
	}
	return ws
}

// isolate writes the isolated pods, and for each of them that it may talk with itself.
func isolate(ws []nft.Write, want *networkpolicy.Table, ch *networkpolicy.Changes) []nft.Write {
	was := func(d networkpolicy.Direction, a netip.Addr) bool {
		if c, ok := ch.Isolated[d][a]; ok {
			return c.From
		}
		return want.Isolated[d][a]
	}
	seen := map[netip.Addr]bool{}
	for d := range ch.Isolated {
		for a := range ch.Isolated[d] {
			if seen[a] {
				continue
			}
			seen[a] = true
			had := was(networkpolicy.Egress, a) || was(networkpolicy.Ingress, a)
			has := want.Isolated[networkpolicy.Egress][a] || want.Isolated[networkpolicy.Ingress][a]
			if had != has {
				ws = append(ws, selfElement(a).write(has))
			}
		}
	}
	for d := range ch.Isolated {
		for a, c := range ch.Isolated[d] {
			ws = append(ws, isolatedElement(networkpolicy.Direction(d), a).write(c.To))
		}
		for a, c := range ch.Cluster[d] {
			ws = append(ws, clusterElement(networkpolicy.Direction(d), a).write(c.To))
		}
	}
	return ws
}

// replaceNetworks writes the ranges that differ. It deletes before it adds, because ranges must not overlap.
func replaceNetworks(was, is []networkpolicy.Range) (ws []nft.Write) {
	gone, kept := map[networkpolicy.Range]bool{}, map[networkpolicy.Range]bool{}
	for _, r := range was {
		gone[r] = true
	}
	for _, r := range is {
		kept[r] = true
	}
	for _, r := range was {
		if !kept[r] {
			ws = append(ws, networkWrite(r, false))
		}
	}
	for _, r := range is {
		if !gone[r] {
			ws = append(ws, networkWrite(r, true))
		}
	}
	return ws
}

func networkWrite(r networkpolicy.Range, add bool) nft.Write {
	w := nft.Write{Set: "network-classes" + family(r.From), Key: r.From.AsSlice(), Add: add, Del: !add}
	if next := r.To.Next(); next.IsValid() {
		w.End = next.AsSlice()
	}
	if add {
		w.Data = number(r.Class)
	}
	return w
}

// differences reads the kernel and returns the writes that make it hold a table.
func (t *Table) differences(ctx context.Context, want *networkpolicy.Table) (ws []nft.Write, err error) {
	have := map[[3]string]element{}
	for _, set := range t.sets() {
		err := t.table.Elements(ctx, set, func(e nft.Element) error {
			el := element{set, string(e.Key), string(e.Last), string(e.Data), e.Comment}
			if el.last == el.key {
				el.last = "" // another program wrote an exact port into a map of ranges
			}
			if set == "decisions" || set == "block-decisions" || set == "rejections" {
				el.data = ""
			}
			have[el.id()] = el
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var adds, gone []nft.Write
	t.wantedElements(want, func(e element) {
		old, had := have[e.id()]
		delete(have, e.id())
		if !had || old != e {
			adds = replace(adds, old, e, had, true)
		}
	})
	var ranges, networks []nft.Write
	for _, e := range have {
		if e.last != "" {
			ranges = append(ranges, e.write(false))
		} else {
			gone = append(gone, e.write(false))
		}
	}
	had, err := t.readNetworks(ctx)
	if err != nil {
		return nil, err
	}
	networks = replaceNetworks(had, want.Networks)
	return slices.Concat(ranges, networks, adds, gone), nil
}

// sets returns the names of all sets except networks.
func (t *Table) sets() []string {
	all := []string{"decisions", "block-decisions"}
	if t.Reject {
		all = append(all, "rejections")
	}
	for _, f := range suffixes {
		all = append(all, "pod-classes"+f, "port-classes"+f, "block-classes"+f, "sandboxes"+f, "self"+f)
		for _, d := range []networkpolicy.Direction{networkpolicy.Egress, networkpolicy.Ingress} {
			name := d.String()
			all = append(all, "isolated-"+name+f, "cluster-"+name+f, "views-"+name+f, name+f, name+"-ranges"+f, name+"-all"+f)
		}
	}
	return all
}

// readNetworks reads the ranges that the kernel holds.
func (t *Table) readNetworks(ctx context.Context) (all []networkpolicy.Range, err error) {
	for _, f := range suffixes {
		ends := map[netip.Addr]bool{}
		var some []networkpolicy.Range
		err := t.table.Elements(ctx, "network-classes"+f, func(e nft.Element) error {
			a, _ := netip.AddrFromSlice(e.Key)
			if e.End {
				ends[a] = true
			} else if len(e.Data) == 4 {
				some = append(some, networkpolicy.Range{From: a, Class: networkpolicy.Class(binary.NativeEndian.Uint32(e.Data))})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		slices.SortFunc(some, func(a, b networkpolicy.Range) int { return a.From.Compare(b.From) })
		stops := make([]netip.Addr, 0, len(ends))
		for a := range ends {
			stops = append(stops, a)
		}
		slices.SortFunc(stops, netip.Addr.Compare)
		for i := range some {
			n, _ := slices.BinarySearchFunc(stops, some[i].From.Next(), netip.Addr.Compare)
			some[i].To = lastOf(some[i].From)
			if n < len(stops) {
				some[i].To = stops[n].Prev()
			}
		}
		all = append(all, some...)
	}
	return all, nil
}

// lastOf is the last address of a family.
func lastOf(a netip.Addr) netip.Addr {
	raw := a.AsSlice()
	for i := range raw {
		raw[i] = 255
	}
	last, _ := netip.AddrFromSlice(raw)
	return last
}
