package networkpolicy

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
)

// A class is a set of terms that at least one address, or one named port of an address, has.
type class struct {
	number Class
	key    string
	terms  []*term
	named  bool // of named ports: one of the terms is a name
	refs   int  // addresses of pods, ranges, and named ports
}

// takeClass returns the class of the terms, with one reference more.
func (c *Compiler) takeClass(terms []*term, pod bool) *class {
	key := classKey(terms, pod)
	k := c.classes[string(key)]
	if k == nil {
		k = &class{key: string(key), terms: terms, named: slices.ContainsFunc(terms, (*term).isName)}
		k.number = c.classNumber(terms, pod)
		c.classes[k.key], c.classByNumber[k.number] = k, k
		c.newClasses[k] = true
		for _, t := range terms {
			t.classes[k] = true
		}
	}
	if k.refs++; k.refs == 1 {
		c.count(k, 1)
	}
	return k
}

// classKey tells classes apart.
func classKey(terms []*term, is bool) []byte {
	key := make([]byte, 1, 1+4*len(terms))
	if is {
		key[0] = 1
	}
	for _, t := range terms {
		key = binary.NativeEndian.AppendUint32(key, uint32(t.sequence))
	}
	return key
}

// count adds a class in use to its terms.
func (c *Compiler) count(k *class, n int) {
	for _, t := range k.terms {
		t.used.add(k, n)
		t.changed = c.passes
	}
}

func (c *Compiler) releaseClass(k *class) {
	if k == nil {
		return
	}
	if k.refs--; k.refs == 0 {
		c.count(k, -1)
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
	bit := Class(0)
	if pod {
		bit = PodClass
	}
	return c.number(keys, bit)
}

// number derives a number with a bit from keys. No other class has the number.
func (c *Compiler) number(keys []string, bit Class) Class {
	h := fnv.New64a()
	for _, k := range keys {
		_, _ = h.Write(append([]byte(k), 0)) // a hash takes everything
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
	if at.owner != nil && !at.contested {
		at.class = c.takeClass(joinTerms(at.owner.terms, c.networksAt(at.addr)), true)
	} else if at.sandbox == nil && len(at.owners) == 0 {
		delete(c.addrs, at.addr)
	}
	c.releaseClass(old)
	c.classifyPorts(at)
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

// joinTerms returns the terms of both lists, sorted.
func joinTerms(terms, more []*term) []*term {
	if len(more) == 0 {
		return terms
	}
	terms = slices.Concat(terms, more)
	slices.SortFunc(terms, compareTerms)
	return terms
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

// A networkRange is a range of addresses that the same peers of ClusterNetworkPolicies include.
type networkRange struct {
	from, to netip.Addr
	terms    []*term
	class    *class
}

// networksAt returns the terms about networks and nodes that include an address.
func (c *Compiler) networksAt(a netip.Addr) []*term {
	i, found := slices.BinarySearchFunc(c.networks, a, func(r networkRange, a netip.Addr) int { return r.from.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && c.networks[i].to.BitLen() == a.BitLen() && c.networks[i].to.Compare(a) >= 0 {
		return c.networks[i].terms
	}
	return nil
}

// updateNetworks cuts the networks and nodes of ClusterNetworkPolicies into ranges that do not overlap, and marks the affected pods.
func (c *Compiler) updateNetworks() {
	old := c.networks
	c.networks = nil
	for _, is4 := range []bool{true, false} {
		c.networks = append(c.networks, c.cutNetworks(is4)...)
	}
	now := make([]Range, len(c.networks))
	for i := range c.networks {
		r := &c.networks[i]
		r.class = c.takeClass(r.terms, false)
		now[i] = Range{r.from, r.to, r.class.number}
	}
	for _, r := range old {
		c.releaseClass(r.class)
	}
	if !slices.Equal(now, c.table.Networks) {
		c.table.Networks, c.changes.Networks = now, true
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

// cutNetworks returns the ranges of one family.
func (c *Compiler) cutNetworks(is4 bool) (out []networkRange) {
	var edges []edge
	for t := range c.terms.networks {
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
		out = append(out, networkRange{from: at, to: to, terms: terms})
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
