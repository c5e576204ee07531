package ipam

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// A poolState is a Pool with the addresses that older pools and reservations leave to it.
type poolState struct {
	*Pool
	// ranges are the addresses in the object's order, without addresses of older pools and reserved ones.
	ranges []Range
	inUse  map[Family]int
}

// pools are all Pools, with the owner of each address.
type pools struct {
	byName   map[string]*poolState
	owners   []owned // sorted, without overlaps
	problems []string
}

type owned struct {
	Range
	pool *poolState
}

// newPools finds the owner of each address: if two pools overlap, the older one.
func newPools(all []*Pool, reserved spans) *pools {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *Pool) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Name, b.Name))
	})
	p := &pools{byName: map[string]*poolState{}}
	var taken []Range
	var older spans
	for _, pool := range sorted {
		state := &poolState{Pool: pool, inUse: map[Family]int{}}
		p.byName[pool.Name] = state
		for _, problem := range pool.Problems {
			p.problems = append(p.problems, fmt.Sprintf("IPAddressPool %s: %s", pool.Name, problem.Message))
		}
		own := spans{}
		for _, r := range pool.Ranges {
			p.addRange(state, r, older, own, reserved)
			own = union(append(slices.Clone(own), r))
		}
		taken = append(taken, pool.Ranges...)
		older = union(taken)
	}
	slices.SortFunc(p.owners, func(a, b owned) int { return a.First.Compare(b.First) })
	return p
}

// addRange gives a pool one of its ranges, except addresses of older pools and duplicates.
func (p *pools) addRange(state *poolState, r Range, older, own, reserved spans) {
	if part, ok := older.overlap(r); ok {
		p.problems = append(p.problems, fmt.Sprintf("IPAddressPool %s: %v is in an older pool too, which has it [let pools not overlap]", state.Name, part))
	}
	for _, part := range older.without(r) {
		for _, part := range own.without(part) {
			p.owners = append(p.owners, owned{part, state})
			if held, ok := reserved.overlap(part); ok {
				p.problems = append(p.problems, fmt.Sprintf("IPAddressPool %s: %v is not given, since it is a node's, the API server's, in a ServiceCIDR or a podCIDR, or no single machine's", state.Name, held))
			}
			state.ranges = append(state.ranges, reserved.without(part)...)
		}
	}
}

// owner returns the pool of an address; nil if there is none.
func (p *pools) owner(a netip.Addr) *poolState {
	i, ok := slices.BinarySearchFunc(p.owners, a, func(o owned, a netip.Addr) int {
		switch {
		case o.Last.Less(a):
			return -1
		case a.Less(o.First):
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return p.owners[i].pool
}

// origin returns the name of the pool of some addresses. It is claimed if that pool has one of them or no pool has any;
// else the pool of the first address that is in a pool.
func (p *pools) origin(addrs []netip.Addr, claimed string) string {
	found := ""
	for _, a := range addrs {
		if o := p.owner(a); o != nil && o.Name == claimed {
			return claimed
		} else if o != nil && found == "" {
			found = o.Name
		}
	}
	return cmp.Or(found, claimed)
}

// gives reports whether the pool may give an address.
func (p *poolState) gives(a netip.Addr) bool {
	return !(p.AvoidBuggyIPs && buggy(a)) && slices.ContainsFunc(p.ranges, func(r Range) bool { return r.Contains(a) })
}

// serves reports whether the pool is for a Service, in a namespace with these labels.
func (p *Pool) serves(s *Service, namespace map[string]string) bool {
	a := p.Allocation
	if a == nil {
		return true
	}
	everywhere := len(a.Namespaces)+len(a.NamespaceSelectors) == 0
	if !everywhere && !slices.Contains(a.Namespaces, s.Namespace) && !api.AnyMatches(a.NamespaceSelectors, namespace) {
		return false
	}
	return len(a.ServiceSelectors) == 0 || api.AnyMatches(a.ServiceSelectors, s.Labels)
}

// candidates returns the pools for a Service that asks for none: first the pools that are restricted to it, by priority.
func (p *pools) candidates(s *Service, namespace map[string]string) []*poolState {
	var out []*poolState
	for _, pool := range p.byName {
		if pool.AutoAssign && pool.serves(s, namespace) {
			out = append(out, pool)
		}
	}
	slices.SortFunc(out, func(a, b *poolState) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), strings.Compare(a.Name, b.Name))
	})
	return out
}

// rank orders pools: first by priority, then restricted pools without a priority, then pools for all Services.
func (p *Pool) rank() int {
	switch {
	case p.Allocation == nil:
		return math.MaxInt
	case p.Allocation.Priority == 0:
		return math.MaxInt - 1
	}
	return p.Allocation.Priority
}

// A PoolUse counts the addresses of a pool.
type PoolUse struct {
	Pool   string
	Total4 int64 // usable addresses; math.MaxInt64 means that or more
	Total6 int64
	InUse4 int64
	InUse6 int64
	// Services is the number of Services with addresses of the pool.
	Services int
}

// use counts the addresses of a pool.
func (p *poolState) use() PoolUse {
	total := map[Family]*big.Int{IPv4: new(big.Int), IPv6: new(big.Int)}
	for _, r := range p.ranges {
		n := total[FamilyOf(r.First)]
		n.Add(n, r.size())
		if p.AvoidBuggyIPs && r.First.Is4() {
			n.Sub(n, big.NewInt(buggyIn(r)))
		}
	}
	count := func(f Family) int64 {
		if !total[f].IsInt64() {
			return math.MaxInt64
		}
		return total[f].Int64()
	}
	return PoolUse{Pool: p.Name, Total4: count(IPv4), Total6: count(IPv6), InUse4: int64(p.inUse[IPv4]), InUse6: int64(p.inUse[IPv6])}
}

// size returns the number of addresses in a range.
func (r Range) size() *big.Int {
	n := new(big.Int).SetBytes(r.Last.AsSlice())
	n.Sub(n, new(big.Int).SetBytes(r.First.AsSlice()))
	return n.Add(n, big.NewInt(1))
}

// buggyIn counts the addresses of an IPv4 range that AvoidBuggyIPs leaves out.
func buggyIn(r Range) int64 {
	upTo := func(a netip.Addr) int64 { // the number from 0.0.0.0 to a
		b := a.As4()
		n := int64(b[0])<<24 | int64(b[1])<<16 | int64(b[2])<<8 | int64(b[3])
		return n/256*2 + 1 + (n%256)/255
	}
	n := upTo(r.Last)
	if r.First != netip.IPv4Unspecified() {
		n -= upTo(r.First.Prev())
	}
	return n
}

// A Report has the use of the pools and their problems.
type Report struct {
	Pools []PoolUse // sorted by name
	// Problems are the problems of pools, in words for the administrator, sorted.
	Problems []string
	// Kept are the Services with an address that no pool would give them now.
	Kept []api.Name
}
