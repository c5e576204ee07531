package userspace

import (
	"net/netip"
	"sync"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A session is one TCP connection or UDP flow of the proxy.
type session struct {
	proto    api.Proto
	scope    scope
	client   netip.AddrPort
	dest     netip.AddrPort // the address that the client called
	front    service.Key    // the frontend that answered
	endpoint netip.AddrPort
	end      func() // ends the session at once; may be called again
}

// sessions has all open sessions.
type sessions struct {
	mu  sync.Mutex
	all map[service.Key]map[*session]struct{}
	tcp map[flowKey]int // clients' TCP connections, with or without an endpoint
}

// begin counts a client's TCP connection until done is called.
func (s *sessions) begin(k flowKey) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tcp == nil {
		s.tcp = map[flowKey]int{}
	}
	s.tcp[k]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.tcp[k]--; s.tcp[k] == 0 {
			delete(s.tcp, k)
		}
	}
}

func (s *sessions) add(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[service.Key]map[*session]struct{}{}
	}
	of := s.all[one.front]
	if of == nil {
		of = map[*session]struct{}{}
		s.all[one.front] = of
	}
	of[one] = struct{}{}
}

func (s *sessions) remove(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all[one.front], one)
	if len(s.all[one.front]) == 0 {
		delete(s.all, one.front)
	}
}

// list returns the sessions for which want returns true.
func (s *sessions) list(want func(*session) bool) (out []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.all {
		for one := range of {
			if want(one) {
				out = append(out, one)
			}
		}
	}
	return out
}

// of returns the sessions of one frontend with one endpoint.
func (s *sessions) of(k service.Key, endpoint netip.AddrPort) (out []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.all[k] {
		if one.endpoint == endpoint {
			out = append(out, one)
		}
	}
	return out
}

// endSessions ends all sessions.
func endSessions(all []*session) {
	for _, s := range all {
		s.end()
	}
}
