package userspace

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// An affinityTable remembers the endpoint of each client of a Service port, until its time expires. The table is copied
// to the kernel every few seconds, where the next process finds it.
type affinityTable struct {
	mu    sync.Mutex
	ports map[uint64]map[netip.Addr]*affinityEntry
	dirty map[affinityKey]struct{} // entries that differ from the kernel
	// written has the kernel's elements.
	written map[affinityKey]affinityEntry
	// fullBuckets has the ports of a Service that remember, or did remember, more than fewClients.
	fullBuckets map[api.Name]map[uint64]bool
}

// Each of the first fullPorts ports of a Service with more than fewClients remembers up to manyClients; each other port
// remembers fewClients. A further client gets the endpoint that the hash of its address selects, and stays there until
// the endpoints change.
const (
	manyClients = 1 << 14
	fewClients  = 1 << 8
	fullPorts   = 4
)

// mayRemember reports whether a port of a Service may remember another client. The caller holds mu.
func (s *affinityTable) mayRemember(of api.Name, port uint64) bool {
	switch n := len(s.ports[port]); {
	case n < fewClients:
		return true
	case n >= manyClients:
		return false
	case s.fullBuckets[of][port]:
		return true
	}
	if s.fullBuckets == nil {
		s.fullBuckets = map[api.Name]map[uint64]bool{}
	}
	maps.DeleteFunc(s.fullBuckets[of], func(p uint64, _ bool) bool { return len(s.ports[p]) < fewClients })
	if len(s.fullBuckets[of]) >= fullPorts {
		return false
	}
	if s.fullBuckets[of] == nil {
		s.fullBuckets[of] = map[uint64]bool{}
	}
	s.fullBuckets[of][port] = true
	return true
}

// An affinityEntry is the endpoint of a client, and its expiry.
type affinityEntry struct {
	at    netip.AddrPort
	until time.Time
}

type affinityKey struct {
	port   uint64
	client netip.Addr
}

// affinityPort returns the number of a Service port for one list of endpoints. The list of policy Local has its own
// number.
func affinityPort(name api.PortName, local bool) uint64 {
	list := "|all"
	if local {
		list = "|local"
	}
	return hashOf([]byte(name.String()), []byte(list))
}

// claim returns the remembered endpoint of a client, if the pool has the endpoint and it is untried. Otherwise claim
// calls pick, and records the result before it returns: two connections that begin at the same time must get one
// endpoint.
func (s *affinityTable) claim(f *service.Frontend, r *service.Route, client netip.Addr, in *pool, tried []*target, pick func() *member) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := affinityKey{affinityPort(f.Service, r.Local), client}
	var m *member
	one := s.ports[k.port][client]
	if one == nil && !s.mayRemember(f.Service.Name, k.port) {
		return in.hashed(client, tried)
	}
	if one != nil && time.Now().Before(one.until) {
		m = in.find(one.at)
	}
	if m == nil || slices.Contains(tried, m.target) {
		if m = pick(); m == nil {
			return nil
		}
	}
	until := time.Now().Add(f.Affinity)
	s.set(k, affinityEntry{m.addr, until})
	// A client that connects often must not cause a write each time.
	was, ok := s.written[k]
	if !ok || was.at != m.addr || was.until.After(until) || until.Sub(was.until) > f.Affinity/16 {
		s.dirty[k] = struct{}{}
	}
	return m
}

// set stores an entry. The caller holds mu.
func (s *affinityTable) set(k affinityKey, one affinityEntry) {
	if s.ports == nil {
		s.ports = map[uint64]map[netip.Addr]*affinityEntry{}
		s.dirty = map[affinityKey]struct{}{}
	}
	of := s.ports[k.port]
	if of == nil {
		of = map[netip.Addr]*affinityEntry{}
		s.ports[k.port] = of
	}
	of[k.client] = &one
}

// prune forgets the clients of endpoints that a frontend no longer has.
func (s *affinityTable) prune(was, is *service.Frontend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pair := range [...][2]*service.Route{{was.Internal, is.Internal}, {was.External, is.External}} {
		port := affinityPort(was.Service, pair[0].Local)
		for client, one := range s.ports[port] {
			if hasEndpoint(pair[0], one.at) && !hasEndpoint(pair[1], one.at) {
				s.forget(affinityKey{port, client})
			}
		}
	}
}

// forgetService forgets all clients of a removed Service port. Their time can be a day, so a tenant that creates
// Services again and again would fill the table.
func (s *affinityTable) forgetService(name api.PortName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, local := range [...]bool{false, true} {
		s.forgetPort(affinityPort(name, local))
	}
}

// retainPorts forgets the clients of all Service ports that are not in names.
func (s *affinityTable) retainPorts(names iter.Seq[api.PortName]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ports) == 0 {
		return
	}
	stay := map[uint64]bool{}
	for name := range names {
		stay[affinityPort(name, false)], stay[affinityPort(name, true)] = true, true
	}
	for port := range s.ports {
		if !stay[port] {
			s.forgetPort(port)
		}
	}
}

// forgetPort forgets all clients of one list of endpoints. The caller holds mu.
func (s *affinityTable) forgetPort(port uint64) {
	for client := range s.ports[port] {
		s.forget(affinityKey{port, client})
	}
}

func (s *affinityTable) forget(k affinityKey) {
	delete(s.ports[k.port], k.client)
	if len(s.ports[k.port]) == 0 {
		delete(s.ports, k.port)
		for name, ports := range s.fullBuckets {
			if delete(ports, k.port); len(ports) == 0 {
				delete(s.fullBuckets, name)
			}
		}
	}
	s.dirty[k] = struct{}{}
}

func hasEndpoint(r *service.Route, a netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(r.Endpoints, a, func(e service.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// maxAffinityWrites bounds the elements in one write.
const maxAffinityWrites = 10000

// writes returns the writes that bring the kernel up to date, and a function to call when they are done. It also
// forgets expired entries.
func (s *affinityTable) writes(now time.Time) (ws []nft.Write, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for port, of := range s.ports {
		for client, one := range of {
			if now.After(one.until) {
				s.forget(affinityKey{port, client})
			}
		}
	}
	put := map[affinityKey]affinityEntry{}
	for k := range s.dirty {
		if len(put) == maxAffinityWrites {
			break
		}
		one := s.ports[k.port][k.client]
		_, had := s.written[k]
		if one == nil {
			if had {
				ws = append(ws, affinityElement(k, affinityEntry{}).write(true, false))
			}
			put[k] = affinityEntry{}
			continue
		}
		ws = append(ws, affinityElement(k, *one).write(had, true))
		put[k] = *one
	}
	return ws, func() { s.noteWritten(put) }
}

// noteWritten records that writes are done.
func (s *affinityTable) noteWritten(put map[affinityKey]affinityEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil {
		s.written = map[affinityKey]affinityEntry{}
	}
	for k, one := range put {
		if one == (affinityEntry{}) {
			delete(s.written, k)
		} else {
			s.written[k] = one
		}
		if now := s.ports[k.port][k.client]; now == nil && one == (affinityEntry{}) || now != nil && *now == one {
			delete(s.dirty, k)
		}
	}
}

// affinityElement returns the kernel's element for an entry. The zero entry gives an element without data, to delete.
func affinityElement(k affinityKey, one affinityEntry) element {
	e := element{set: affinityClients, is4: k.client.Is4()}
	e.key = number(uint32(k.port>>32)) + number(uint32(k.port)) + string(k.client.AsSlice())
	if one.at.IsValid() {
		e.data = addrPortText(one.at) + number(secondsAt(one.until))
	}
	return e
}

// uptime returns the time since the kernel booted. Times in the kernel's elements count from the boot, because an
// administrator may set the node's clock. No element outlives the boot.
func uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // never fails
	return time.Duration(t.Nano())
}

// secondsAt returns a time in the unit of the kernel's elements.
func secondsAt(t time.Time) uint32 {
	return uint32(max(0, (uptime()+time.Until(t)).Round(time.Second)/time.Second))
}

// timeAt is the inverse of secondsAt.
func timeAt(seconds uint32) time.Time {
	return time.Now().Add(time.Duration(seconds)*time.Second - uptime())
}

// readAffinity reads the kernel's entries of one family.
func readAffinity(r *nftset.Reader, is4 bool, into map[affinityKey]affinityEntry) {
	r.Each(affinityClients.Name(is4), func(e nft.Element) error {
		if len(e.Key) != 8+nftset.AddrSize(is4) {
			return fmt.Errorf("key has %d bytes", len(e.Key))
		}
		client, _ := netip.AddrFromSlice(e.Key[8:])
		k := affinityKey{uint64(binary.NativeEndian.Uint32(e.Key))<<32 | uint64(binary.NativeEndian.Uint32(e.Key[4:])), client}
		at, rest, err := nftset.ParseAddrPort(e.Data, is4)
		if err != nil {
			return err
		}
		until, err := nftset.ParseNumber(rest)
		into[k] = affinityEntry{at, timeAt(until)}
		return err
	})
}

// load takes over the kernel's entries, except for clients that this process knows: its entries are newer.
func (s *affinityTable) load(found map[affinityKey]affinityEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = found
	for k, one := range found {
		if s.ports[k.port][k.client] == nil {
			s.set(k, one)
		}
	}
	// Another program has removed the entries that the kernel lacks: write them again.
	for port, of := range s.ports {
		for client := range of {
			if k := (affinityKey{port, client}); found[k] == (affinityEntry{}) {
				s.dirty[k] = struct{}{}
			}
		}
	}
}
