package userspace

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Session affinity: which endpoint each client of a Service port has, and until when.
// It lives here and is copied to the kernel every few seconds, so that the next process
// finds it.
type stickies struct {
	mu    sync.Mutex
	ports map[uint64]map[netip.Addr]*stay
	dirty map[stayKey]struct{} // differ from the kernel's
	// written are the elements that the kernel has.
	written map[stayKey]stay
}

// A stay is where a client is, until when.
type stay struct {
	at    netip.AddrPort
	until time.Time
}

type stayKey struct {
	port   uint64
	client netip.Addr
}

// stickyPort numbers a Service port, of the list that a route uses: those of policy Local
// are apart.
func stickyPort(name service.PortName, local bool) uint64 {
	list := "|all"
	if local {
		list = "|local"
	}
	return hashOf([]byte(name.String()), []byte(list))
}

// claim returns the endpoint that a client has, if that is in the pool and was not
// tried; else what pick says, which the client has from now on: two connections that
// begin at once must not get two endpoints.
func (s *stickies) claim(f *service.Frontend, r *service.Route, client netip.Addr, in *pool, tried []*target, pick func() *member) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := stayKey{stickyPort(f.Service, r.Local), client}
	var m *member
	if one := s.ports[k.port][client]; one != nil && time.Now().Before(one.until) {
		m = in.find(one.at)
	}
	if m == nil || slices.Contains(tried, m.target) {
		if m = pick(); m == nil {
			return nil
		}
	}
	until := time.Now().Add(f.Affinity)
	s.keep(k, stay{m.addr, until})
	// A client that comes all the time is not worth a write each time.
	was, ok := s.written[k]
	if !ok || was.at != m.addr || was.until.After(until) || until.Sub(was.until) > f.Affinity/16 {
		s.dirty[k] = struct{}{}
	}
	return m
}

// keep puts one in place. The caller holds mu.
func (s *stickies) keep(k stayKey, one stay) {
	if s.ports == nil {
		s.ports = map[uint64]map[netip.Addr]*stay{}
		s.dirty = map[stayKey]struct{}{}
	}
	of := s.ports[k.port]
	if of == nil {
		of = map[netip.Addr]*stay{}
		s.ports[k.port] = of
	}
	of[k.client] = &one
}

// sweep forgets clients of endpoints that a frontend has no more.
func (s *stickies) sweep(was, is *service.Frontend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pair := range [...][2]*service.Route{{was.Internal, is.Internal}, {was.External, is.External}} {
		port := stickyPort(was.Service, pair[0].Local)
		for client, one := range s.ports[port] {
			if hasEndpoint(pair[0], one.at) && !hasEndpoint(pair[1], one.at) {
				s.forget(stayKey{port, client})
			}
		}
	}
}

func (s *stickies) forget(k stayKey) {
	delete(s.ports[k.port], k.client)
	if len(s.ports[k.port]) == 0 {
		delete(s.ports, k.port)
	}
	s.dirty[k] = struct{}{}
}

func hasEndpoint(r *service.Route, a netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(r.Endpoints, a, func(e service.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return ok
}

// maxStays bounds how many are written at once.
const maxStays = 10000

// writes returns what brings the kernel up to date, and a function to call when that is
// done. It also forgets those whose time is over.
func (s *stickies) writes(now time.Time) (ws []nft.Write, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for port, of := range s.ports {
		for client, one := range of {
			if now.After(one.until) {
				s.forget(stayKey{port, client})
			}
		}
	}
	put := map[stayKey]stay{}
	for k := range s.dirty {
		if len(put) == maxStays {
			break
		}
		one := s.ports[k.port][k.client]
		_, had := s.written[k]
		if one == nil {
			if had {
				ws = append(ws, stayElement(k, stay{}).write(true, false))
			}
			put[k] = stay{}
			continue
		}
		ws = append(ws, stayElement(k, *one).write(had, true))
		put[k] = *one
	}
	return ws, func() { s.note(put) }
}

// note takes writes for done.
func (s *stickies) note(put map[stayKey]stay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil {
		s.written = map[stayKey]stay{}
	}
	for k, one := range put {
		if one == (stay{}) {
			delete(s.written, k)
		} else {
			s.written[k] = one
		}
		if now := s.ports[k.port][k.client]; now == nil && one == (stay{}) || now != nil && *now == one {
			delete(s.dirty, k)
		}
	}
}

// stayElement is a stay as the kernel keeps it.
func stayElement(k stayKey, one stay) element {
	e := element{set: affinities, is4: k.client.Is4()}
	e.key = number(uint32(k.port>>32)) + number(uint32(k.port)) + string(k.client.AsSlice())
	if one.at.IsValid() {
		e.data = endpoint(one.at) + number(seconds(one.until))
	}
	return e
}

// load takes over what the kernel has. What this process knows itself is newer.
func (s *stickies) load(ctx context.Context, t *nft.Table) error {
	found := map[stayKey]stay{}
	for _, is4 := range families {
		err := t.Elements(ctx, affinities.name(is4), func(e nft.Element) error {
			if len(e.Key) != 8+addrSize(is4) {
				return fmt.Errorf("key has %d bytes", len(e.Key))
			}
			client, _ := netip.AddrFromSlice(e.Key[8:])
			k := stayKey{uint64(binary.NativeEndian.Uint32(e.Key))<<32 | uint64(binary.NativeEndian.Uint32(e.Key[4:])), client}
			at, rest, err := parseEndpoint(string(e.Data), is4)
			if err != nil {
				return err
			}
			until, err := parseNumber(rest)
			found[k] = stay{at, time.Unix(int64(until), 0)}
			return err
		})
		if err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = found
	for k, one := range found {
		if s.ports[k.port][k.client] == nil {
			s.keep(k, one)
		}
	}
	// What we know and the kernel has not: another hand took it away.
	for port, of := range s.ports {
		for client := range of {
			if k := (stayKey{port, client}); found[k] == (stay{}) {
				s.dirty[k] = struct{}{}
			}
		}
	}
	return nil
}
