package announce

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Candidate is a node that may announce an address.
type Candidate struct {
	Node       string
	Score      int      // by preferredNodeSelectors
	Interfaces []string // empty means all
}

func (c Candidate) equal(o Candidate) bool {
	return c.Node == o.Node && c.Score == o.Score && slices.Equal(c.Interfaces, o.Interfaces)
}

// candidates are nodes in the order of their names. Addresses share them, and each address has an order of preference: by
// score, then by the hash of node and address. So a node that comes or goes moves only the addresses that it gets or had.
type candidates struct{ all []Candidate }

// maxBest is the number of best candidates that an address remembers. If all of them are out, which is rare, Owner computes
// the hashes of the others.
const maxBest = 6

// none is an index that no candidate has.
const none = 1<<16 - 1

// reuse returns old if it has the same candidates, so that callers can compare pointers and skip work.
func (c *candidates) reuse(old *candidates) *candidates {
	if old != nil && slices.EqualFunc(c.all, old.all, Candidate.equal) {
		return old
	}
	return c
}

// only returns the candidates among these nodes.
func (c *candidates) only(nodes map[string]bool) *candidates {
	var some []Candidate
	for _, one := range c.all {
		if nodes[one.Node] {
			some = append(some, one)
		}
	}
	return &candidates{some}
}

// A preference is the rank of a candidate for an address. Higher scores come first.
type preference struct {
	score int
	hash  [sha256.Size]byte
}

func (c *candidates) preference(i int, a netip.Addr) preference {
	var text [300]byte // a node's name has at most 253 bytes
	one := &c.all[i]
	return preference{one.Score, sha256.Sum256(a.AppendTo(append(append(text[:0], one.Node...), '#')))}
}

func (p *preference) compare(o *preference) int {
	return cmp.Or(cmp.Compare(o.score, p.score), bytes.Compare(p.hash[:], o.hash[:]))
}

// rank returns the indexes of the best candidates for an address, the best first.
func (c *candidates) rank(a netip.Addr) (best [maxBest]uint16) {
	for i := range best {
		best[i] = none
	}
	var preferences [maxBest]preference
	for i := range min(len(c.all), none) {
		p := c.preference(i, a)
		k := maxBest
		for k > 0 && (best[k-1] == none || p.compare(&preferences[k-1]) < 0) {
			k--
		}
		if k < maxBest {
			copy(best[k+1:], best[k:])
			copy(preferences[k+1:], preferences[k:])
			best[k], preferences[k] = uint16(i), p
		}
	}
	return best
}

// Owner returns the best candidate that is not out.
func (d *Decision) Owner(out map[string]bool) (Candidate, bool) {
	if d.candidates == nil {
		return Candidate{}, false
	}
	all := d.candidates.all
	for _, i := range d.best {
		if i == none {
			return Candidate{}, false // all candidates are out
		}
		if !out[all[i].Node] {
			return all[i], true
		}
	}
	best, where := -1, preference{}
	for i := range all {
		if out[all[i].Node] {
			continue
		}
		if p := d.candidates.preference(i, d.Addr); best < 0 || p.compare(&where) < 0 {
			best, where = i, p
		}
	}
	if best < 0 {
		return Candidate{}, false
	}
	return all[best], true
}

// Candidate returns the candidate with the name of a node; false if the node is none.
func (d *Decision) Candidate(node string) (Candidate, bool) {
	if i, ok := d.index(node); ok {
		return d.candidates.all[i], true
	}
	return Candidate{}, false
}

func (d *Decision) index(node string) (i int, ok bool) {
	if d.candidates == nil {
		return 0, false
	}
	return slices.BinarySearchFunc(d.candidates.all, node, func(c Candidate, name string) int { return cmp.Compare(c.Node, name) })
}

// before reports whether a candidate comes before another node. Every candidate comes before a node that is none.
func (d *Decision) before(node, other string) bool {
	i, ok := d.index(node)
	j, known := d.index(other)
	if !ok || !known {
		return ok
	}
	x, y := d.candidates.preference(i, d.Addr), d.candidates.preference(j, d.Addr)
	return x.compare(&y) < 0
}

// Candidates returns the nodes that may announce the address, the best first.
func (d *Decision) Candidates() (all []Candidate) {
	out := map[string]bool{}
	for {
		c, ok := d.Owner(out)
		if !ok {
			return all
		}
		all, out[c.Node] = append(all, c), true
	}
}

// candidates returns the nodes that match an advertisement.
func (in Input) candidates(ads []*L2Advertisement) *candidates {
	c := &candidates{}
	for i := range in.Nodes {
		if one, reason := candidate(&in.Nodes[i], ads); reason == "" {
			c.all = append(c.all, one)
		}
	}
	return c
}

// candidate returns a node as a candidate, with the sum of the scores and the interfaces of all its advertisements. reason
// is set if the node is none.
func candidate(n *Node, ads []*L2Advertisement) (c Candidate, reason string) {
	c.Node, reason = n.Name, NotThisNodeL2
	interfaces, everywhere := map[string]bool{}, false
	for _, ad := range ads {
		if !n.matches(ad.NodeSelectors) {
			continue
		}
		reason = n.unused()
		everywhere = everywhere || len(ad.Interfaces) == 0
		for _, name := range ad.Interfaces {
			interfaces[name] = true
		}
		for _, p := range ad.PreferredNodeSelectors {
			if p.Preference.Matches(n.Labels) {
				c.Score += p.Weight
			}
		}
	}
	if !everywhere {
		c.Interfaces = slices.Sorted(maps.Keys(interfaces))
	}
	return c, reason
}

// matches reports whether an object with these nodeSelectors is for the node.
func (n *Node) matches(selectors []api.Selector) bool {
	return len(selectors) == 0 || api.AnyMatches(selectors, n.Labels)
}

// unused returns the reason why load balancers must not use the node; empty if they may.
func (n *Node) unused() string {
	if n.Excluded == "" {
		return ""
	}
	return "load balancers must not use this node: " + n.Excluded
}
