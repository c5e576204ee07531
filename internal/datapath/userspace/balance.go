package userspace

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fairway-net/fairway/internal/service"
)

// A target is an endpoint of a Service port, with what is known of it. All frontends of
// the port share it, so that its connections are counted together.
type target struct {
	addr   netip.AddrPort
	active atomic.Int64 // open connections and flows
	pools  int          // that have it; guarded by the proxy's mutex
}

// A member is a target in a pool, as the pool's route has it.
type member struct {
	*target
	endpoint service.Endpoint
}

// share is the member's weight; 0 is the same as 1.
func (m *member) share() int64 { return int64(max(m.endpoint.Weight, 1)) }

// A pool is the endpoints of one route with its algorithm. It is made anew when the
// route changes, and goes on where the old one was.
type pool struct {
	algorithm service.Algorithm
	members   []member
	total     int64 // sum of shares
	turn      atomic.Uint64

	mu      sync.Mutex
	credits []int64 // weighted round robin: what each has saved
	ring    []int32 // Maglev: who has each slot; nil: not yet
}

// A call is what algorithms look at.
type call struct{ client, dest netip.Addr }

// newPool makes a pool; targets is asked for each endpoint's.
func newPool(a service.Algorithm, eps []service.Endpoint, before *pool, target func(service.Endpoint) *target) *pool {
	p := &pool{algorithm: a, members: make([]member, 0, len(eps))}
	for _, e := range eps {
		m := member{target(e), e}
		p.members = append(p.members, m)
		p.total += m.share()
	}
	if before != nil {
		p.turn.Store(before.turn.Load())
	}
	return p
}

// pick returns the member for a call, nil if all are among those that were tried. The
// first pick is the algorithm's, later ones go round.
func (p *pool) pick(c call, tried []*target) *member {
	n := len(p.members)
	if n == 0 {
		return nil
	}
	at := p.first(c)
	for i := range n {
		m := &p.members[(at+i)%n]
		if !slices.Contains(tried, m.target) {
			return m
		}
	}
	return nil
}

// find returns the member with an address, nil if there is none.
func (p *pool) find(a netip.AddrPort) *member {
	i, ok := slices.BinarySearchFunc(p.members, a, func(m member, a netip.AddrPort) int { return m.addr.Compare(a) })
	if !ok {
		return nil
	}
	return &p.members[i]
}

func (p *pool) first(c call) int {
	n := len(p.members)
	if n == 1 {
		return 0
	}
	switch p.algorithm {
	case service.RoundRobin:
		return p.roundRobin()
	case service.LeastConn:
		return p.least(0)
	case service.ShortestDelay:
		return p.least(1)
	case service.NeverQueue:
		if i := p.idle(); i >= 0 {
			return i
		}
		return p.least(1)
	case service.SourceHash:
		return p.share(hash(c.client) % uint64(p.total))
	case service.DestHash:
		return p.share(hash(c.dest) % uint64(p.total))
	case service.Maglev:
		ring := p.maglev()
		return int(ring[hash(c.client)%uint64(len(ring))])
	}
	return p.share(rand.Uint64N(uint64(p.total)))
}

// share returns who has a point of the line on which all shares lie one behind the other.
func (p *pool) share(at uint64) int {
	if p.total == int64(len(p.members)) {
		return int(at)
	}
	for i := range p.members {
		s := uint64(p.members[i].share())
		if at < s {
			return i
		}
		at -= s
	}
	return 0
}

// roundRobin goes round; with weights it is smooth: 3:1 is a a b a, not a a a b.
func (p *pool) roundRobin() int {
	if p.total == int64(len(p.members)) {
		return int((p.turn.Add(1) - 1) % uint64(len(p.members)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.credits == nil {
		p.credits = make([]int64, len(p.members))
	}
	best := 0
	for i := range p.members {
		p.credits[i] += p.members[i].share()
		if p.credits[i] > p.credits[best] {
			best = i
		}
	}
	p.credits[best] -= p.total
	return best
}

// least returns who has the fewest connections for its share, with plus more. Among
// equals it goes round.
func (p *pool) least(plus int64) int {
	n := len(p.members)
	start := int((p.turn.Add(1) - 1) % uint64(n))
	best, bestLoad, bestShare := -1, int64(0), int64(1)
	for i := range n {
		at := (start + i) % n
		load, share := p.members[at].active.Load()+plus, p.members[at].share()
		if best < 0 || load*bestShare < bestLoad*share {
			best, bestLoad, bestShare = at, load, share
		}
	}
	return best
}

// idle returns somebody without any connection, -1 if all have some.
func (p *pool) idle() int {
	n := len(p.members)
	start := int((p.turn.Add(1) - 1) % uint64(n))
	for i := range n {
		if at := (start + i) % n; p.members[at].active.Load() == 0 {
			return at
		}
	}
	return -1
}

// maglev returns the lookup table of Eisenbud et al., "Maglev" (NSDI 2016), section 3.4:
// each endpoint has its own order of all slots and takes turns, as many as its weight,
// in taking the first free one. An endpoint that goes leaves most slots of others alone.
func (p *pool) maglev() []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ring != nil {
		return p.ring
	}
	size := ringSize(p.total)
	ring := make([]int32, size)
	for i := range ring {
		ring[i] = -1
	}
	type order struct{ offset, skip, next uint64 }
	orders := make([]order, len(p.members))
	for i, m := range p.members {
		h := hashOf(m.addr.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, m.addr.Port()))
		orders[i] = order{offset: h % size, skip: (h>>32)%(size-1) + 1}
	}
	for filled := uint64(0); filled < size; {
		for i := range orders {
			o := &orders[i]
			for range p.members[i].share() {
				if filled == size {
					break
				}
				slot := (o.offset + o.next*o.skip) % size
				for ring[slot] >= 0 {
					o.next++
					slot = (o.offset + o.next*o.skip) % size
				}
				ring[slot] = int32(i)
				o.next++
				filled++
			}
		}
	}
	p.ring = ring
	return ring
}

// ringSize is a prime of some hundred slots a share, so that shares are even to a percent.
func ringSize(total int64) uint64 {
	for _, prime := range [...]uint64{1021, 16381, 65537} {
		if prime >= uint64(total)*100 {
			return prime
		}
	}
	return 655373
}

// hash is the same in every process and on every node.
func hash(a netip.Addr) uint64 { return hashOf(a.Unmap().AsSlice()) }

func hashOf(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write(p) // never fails
	}
	// FNV's high bits know little of the last byte: mix (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
