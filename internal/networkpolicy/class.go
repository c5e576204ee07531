package networkpolicy

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
)

// A class is a set of terms that at least one address has.
type class struct {
	number Class
	key    string
	terms  []*term
	refs   int // addresses of pods, and ranges
}

// takeClass returns the class of the terms, with one reference more.
func (c *Compiler) takeClass(terms []*term, pod bool) *class {
	key := make([]byte, 1, 1+4*len(terms))
	if pod {
		key[0] = 1
	}
	for _, t := range terms {
		key = binary.NativeEndian.AppendUint32(key, uint32(t.sequence))
	}
	k := c.classes[string(key)]
	if k == nil {
		k = &class{key: string(key), terms: terms}
		k.number = c.classNumber(terms, pod)
		c.classes[k.key], c.classByNumber[k.number] = k, k
		c.newClasses[k] = true
		for _, t := range terms {
			t.classes[k] = true
		}
	}
	if k.refs++; k.refs == 1 {
		for _, t := range terms {
			t.used++
		}
	}
	return k
}

func (c *Compiler) releaseClass(k *class) {
	if k == nil {
		return
	}
	if k.refs--; k.refs == 0 {
		for _, t := range k.terms {
			t.used--
		}
		c.emptyClasses[k] = true
	}
}

// classBits are the bits of a class number that come from its hash. The others say which kind of class it is.
const classBits = 1<<29 - 1

// classNumber derives a number from the keys of the terms, so that it is the same after a restart. No other class has
// the number.
func (c *Compiler) classNumber(terms []*term, pod bool) Class {
	keys := make([]string, len(terms))
	for i, t := range terms {
		keys[i] = t.key
	}
	slices.Sort(keys)
	h := fnv.New64a()
	for _, k := range keys {
		_, _ = h.Write(append([]byte(k), 0)) // a hash takes everything
	}
	bit := Class(0)
	if pod {
		bit = PodClass
	}
	for n := h.Sum64(); ; n++ {
		number := bit | Class((n^n>>32)&classBits)
		if number&classBits > AnyPod && c.classByNumber[number] == nil {
			return number
		}
	}
}

// classify finds the class of an address. It forgets an address without pods and without a sandbox.
func (c *Compiler) classify(at *address) {
	old := at.class
	at.class = nil
	if at.owner != nil {
		terms := at.owner.terms
		if in := c.blocksAt(at.addr); len(in) > 0 {
			terms = slices.Concat(terms, in)
			slices.SortFunc(terms, compareTerms)
		}
		at.class = c.takeClass(terms, true)
	} else if at.sandbox == nil && len(at.owners) == 0 {
		delete(c.addrs, at.addr)
	}
	c.releaseClass(old)
	var was, is Class
	if old != nil {
		was = old.number
	}
	if at.class != nil {
		is = at.class.number
		c.table.Classes[at.addr] = is
	} else {
		delete(c.table.Classes, at.addr)
	}
	if was != is {
		note(c.changes.Classes, at.addr, was, is, equalValues)
		c.changes.Revoked = c.changes.Revoked || len(c.cluster) > 0 || c.grantsTo(was)
	}
}

// grantsTo reports whether a profile grants anything to a class, directly or as part of all pods.
func (c *Compiler) grantsTo(k Class) bool {
	for d := range c.profiles {
		for _, p := range c.profiles[d] {
			if k != 0 && (p.grants[k] != nil || p.grants[AnyPod] != nil) {
				return true
			}
		}
	}
	return false
}

// A blockRange is a range of addresses that belong to the same blocks.
type blockRange struct {
	from, to netip.Addr
	terms    []*term
	class    *class
}

// blocksAt returns the terms of the blocks that have an address.
func (c *Compiler) blocksAt(a netip.Addr) []*term {
	i, found := slices.BinarySearchFunc(c.blocks, a, func(r blockRange, a netip.Addr) int { return r.from.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && c.blocks[i].to.BitLen() == a.BitLen() && c.blocks[i].to.Compare(a) >= 0 {
		return c.blocks[i].terms
	}
	return nil
}

// updateBlocks cuts all blocks into ranges that do not overlap, and marks the affected pods.
func (c *Compiler) updateBlocks() {
	old := c.blocks
	c.blocks = nil
	for _, is4 := range []bool{true, false} {
		c.blocks = append(c.blocks, c.cutBlocks(is4)...)
	}
	now := make([]Range, len(c.blocks))
	for i := range c.blocks {
		r := &c.blocks[i]
		r.class = c.takeClass(r.terms, false)
		now[i] = Range{r.from, r.to, r.class.number}
	}
	for _, r := range old {
		c.releaseClass(r.class)
	}
	if !slices.Equal(now, c.table.Blocks) {
		c.table.Blocks, c.changes.Blocks = now, true
		c.changes.Revoked = c.changes.Revoked || len(c.cluster) > 0
	}
	for _, at := range c.addrs {
		if at.owner != nil {
			c.dirtyAddrs[at] = true
		}
	}
}

// An edge is the first address of a block, or the first address after a block.
type edge struct {
	addr  netip.Addr
	isEnd bool
	term  *term
}

// cutBlocks returns the ranges of one family.
func (c *Compiler) cutBlocks(is4 bool) (out []blockRange) {
	var edges []edge
	for t := range c.terms.blocks {
		for _, r := range c.rangesOf(t) {
			if r[0].Is4() != is4 {
				continue
			}
			edges = append(edges, edge{r[0], false, t})
			if next := r[1].Next(); next.IsValid() {
				edges = append(edges, edge{next, true, t})
			}
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.addr.Compare(b.addr), compareTerms(a.term, b.term)) })
	in := map[*term]int{}
	for i := 0; i < len(edges); {
		at := edges[i].addr
		for ; i < len(edges) && edges[i].addr == at; i++ {
			if e := edges[i]; !e.isEnd {
				in[e.term]++
			} else if in[e.term]--; in[e.term] == 0 {
				delete(in, e.term)
			}
		}
		if len(in) == 0 {
			continue
		}
		to := lastOf(netip.PrefixFrom(at, 0).Masked())
		if i < len(edges) {
			to = edges[i].addr.Prev()
		}
		terms := make([]*term, 0, len(in))
		for t := range in {
			terms = append(terms, t)
		}
		slices.SortFunc(terms, compareTerms)
		if n := len(out); n > 0 && out[n-1].to.Next() == at && slices.Equal(out[n-1].terms, terms) {
			out[n-1].to = to
			continue
		}
		out = append(out, blockRange{from: at, to: to, terms: terms})
	}
	return out
}

// rangesOf returns the addresses of a term about a block or about nodes, as pairs of first and last address.
func (c *Compiler) rangesOf(t *term) (out [][2]netip.Addr) {
	if t.block != nil {
		return withoutExcepts(t.block)
	}
	seen := map[netip.Addr]bool{}
	for _, n := range c.nodes {
		if !t.nodes.Matches(n.Labels) {
			continue
		}
		for _, a := range n.Addrs {
			if !seen[a] {
				seen[a] = true
				out = append(out, [2]netip.Addr{a, a})
			}
		}
	}
	return out
}

// withoutExcepts returns the ranges of a block without its exceptions, as first and last addresses.
func withoutExcepts(b *Block) (out [][2]netip.Addr) {
	except := slices.DeleteFunc(slices.Clone(b.Except), func(p netip.Prefix) bool { return !b.CIDR.Overlaps(p) })
	slices.SortFunc(except, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	from, last := b.CIDR.Addr(), lastOf(b.CIDR)
	for _, e := range except {
		first, end := e.Addr(), lastOf(e)
		if first.Compare(from) > 0 {
			out = append(out, [2]netip.Addr{from, first.Prev()})
		}
		if end.Compare(last) >= 0 {
			return out
		}
		if end.Compare(from) >= 0 {
			from = end.Next()
		}
	}
	return append(out, [2]netip.Addr{from, last})
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(raw); i++ {
		raw[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(raw)
	return a
}
