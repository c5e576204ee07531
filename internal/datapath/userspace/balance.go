package userspace

import (
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A target is an endpoint of a Service port, with its number of connections. All frontends of the port share the
// target, so the number includes the connections of all.
type target struct {
	addr   netip.AddrPort
	active atomic.Int64 // open connections and flows
	pools  int          // number of pools with the target; guarded by the proxy's mutex
	ports  budget       // the node's ports, for TCP connections that do not keep the client's address
}

// A member is a target in a pool, with the endpoint of the pool's route.
type member struct {
	*target
	endpoint *service.Endpoint
}

// weight returns the member's weight, at least 1.
func (m *member) weight() int64 { return int64(lb.Weight(*m.endpoint)) }

// A pool has the endpoints of one route, and its algorithm. A changed route gets a new pool, which continues at the
// position of its predecessor.
type pool struct {
	algorithm service.Algorithm
	members   []member
	turn      atomic.Uint64
	list      func() []int32 // the slots of package lb; each is the index of a member
}

// A pickKey has the addresses that an algorithm can choose by.
type pickKey struct{ client, dest netip.Addr }

// newPool makes a pool. before is the predecessor, or nil. take returns the target of an endpoint; had is the
// endpoint's target in the predecessor, or nil.
func newPool(a service.Algorithm, eps []service.Endpoint, before *pool, take func(e *service.Endpoint, had *target) *target) *pool {
	p := &pool{algorithm: a, members: make([]member, len(eps))}
	var left []member
	if before != nil {
		left = before.members
	}
	for i := range eps {
		e := &eps[i]
		for len(left) > 0 && left[0].endpoint.Addr != e.Addr && left[0].endpoint.Addr.Compare(e.Addr) < 0 {
			left = left[1:]
		}
		var had *target
		if len(left) > 0 && left[0].endpoint.Addr == e.Addr {
			had = left[0].target
		}
		p.members[i] = member{take(e, had), e}
	}
	var was []netip.AddrPort
	if before != nil {
		p.turn.Store(before.turn.Load())
		was = before.slots()
	}
	p.list = sync.OnceValue(func() []int32 {
		if a == service.Maglev {
			return lb.Maglev(eps)
		}
		return lb.Slots(was, eps)
	})
	return p
}

// slots returns the addresses in a pool's list. The next list continues from them, so an endpoint that stays keeps its
// clients. The list matters only for algorithms that hash: slots returns nil for others.
func (p *pool) slots() []netip.AddrPort {
	if p.algorithm != service.SourceHash && p.algorithm != service.DestHash {
		return nil
	}
	var all []netip.AddrPort
	for _, at := range p.list() {
		all = append(all, p.members[at].addr)
	}
	return all
}

// choose returns the member for a connection, or nil if all were tried. The algorithm makes the first choice. Later
// choices are round robin.
func (p *pool) choose(c pickKey, tried []*target) *member {
	if len(p.members) == 0 {
		return nil
	}
	return p.nextUntried(p.first(c), tried)
}

// hashed returns the member that the hash of the client's address selects, or nil if all were tried.
func (p *pool) hashed(client netip.Addr, tried []*target) *member {
	return p.nextUntried(lb.Pick(lb.Hash(client), len(p.members)), tried)
}

// nextUntried returns the first untried member, round robin from index at, or nil if all were tried.
func (p *pool) nextUntried(at int, tried []*target) *member {
	for i := range p.members {
		m := &p.members[(at+i)%len(p.members)]
		if !slices.Contains(tried, m.target) {
			return m
		}
	}
	return nil
}

// find returns the member with an address, or nil.
func (p *pool) find(a netip.AddrPort) *member {
	i, ok := slices.BinarySearchFunc(p.members, a, func(m member, a netip.AddrPort) int { return m.addr.Compare(a) })
	if !ok {
		return nil
	}
	return &p.members[i]
}

// first returns the algorithm's choice. For sh, dh and maglev, mode nftables uses an equal list and hash, so clients
// keep their endpoints when the mode changes.
func (p *pool) first(c pickKey) int {
	if len(p.members) == 1 {
		return 0
	}
	switch p.algorithm {
	case service.LeastConn:
		return p.least(0)
	case service.ShortestDelay:
		return p.least(1)
	case service.NeverQueue:
		if i := p.idle(); i >= 0 {
			return i
		}
		return p.least(1)
	}
	list := p.list()
	at := 0
	switch p.algorithm {
	case service.RoundRobin:
		at = int((p.turn.Add(1) - 1) % uint64(len(list)))
	case service.SourceHash, service.Maglev:
		at = lb.Pick(lb.Hash(c.client), len(list))
	case service.DestHash:
		at = lb.Pick(lb.Hash(c.dest), len(list))
	default:
		at = rand.IntN(len(list))
	}
	return int(list[at])
}

// least returns the member with the fewest connections in relation to its weight. plus is added to each number of
// connections. Equal members take turns.
func (p *pool) least(plus int64) int {
	n := len(p.members)
	start := int((p.turn.Add(1) - 1) % uint64(n))
	best, bestLoad, bestWeight := -1, int64(0), int64(1)
	for i := range n {
		at := (start + i) % n
		load, weight := p.members[at].active.Load()+plus, p.members[at].weight()
		if best < 0 || load*bestWeight < bestLoad*weight {
			best, bestLoad, bestWeight = at, load, weight
		}
	}
	return best
}

// idle returns a member without connections, or -1.
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

// hashOf returns a hash that is equal in every process and on every node, because the kernel stores it.
func hashOf(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write(p) // never fails
	}
	// FNV's high bits depend little on the last byte: mix (the finalizer of MurmurHash3).
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
