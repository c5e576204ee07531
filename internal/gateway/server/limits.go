package server

import (
	"net/netip"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// maxLimited is the number of clients whose rate a rule remembers. Above it the clients with a full allowance are
// forgotten, and then all.
const maxLimited = 50_000

// A limiter bounds each client's requests on one rule. Its rate is a leaky bucket that lets a burst through without delay, as
// ingress-nginx configures nginx.
type limiter struct {
	limits *gateway.Limits
	every  time.Duration // between two requests
	mu     sync.Mutex
	next   map[netip.Prefix]time.Time // when the client's allowance is full again
	active map[netip.Prefix]int
}

func newLimiter(l *gateway.Limits) *limiter {
	m := &limiter{limits: l, next: map[netip.Prefix]time.Time{}, active: map[netip.Prefix]int{}}
	if l.PerSecond > 0 {
		m.every = time.Duration(float64(time.Second) / l.PerSecond)
	}
	return m
}

// clientKey is one client: an IPv4 address, or an IPv6 /64, which a host has.
func clientKey(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // bits fits the address; the prefix of no address is one client
	return p
}

// take counts the request, or refuses it.
func (x *exchange) take(m *limiter) *reply {
	client := x.in.Client()
	if contains(m.limits.Exempt, client) {
		return nil
	}
	key := clientKey(client)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.rate(key, x.started) || m.limits.Connections > 0 && m.active[key] >= m.limits.Connections {
		code := m.limits.Code
		if code == 0 {
			code = 503
		}
		x.srv.metrics.limited.Inc()
		return x.refuse(code, "too many requests of the client")
	}
	if m.limits.Connections > 0 {
		m.active[key]++
		x.release = func() { m.leave(key) }
	}
	return nil
}

// rate reports whether the client's rate allows a request now, and counts it.
func (m *limiter) rate(key netip.Prefix, now time.Time) bool {
	if m.every == 0 {
		return true
	}
	next := m.next[key]
	if next.Before(now) {
		next = now
	}
	if next.Sub(now) > time.Duration(m.limits.Burst)*m.every {
		return false
	}
	if len(m.next) >= maxLimited {
		for k, t := range m.next {
			if t.Before(now) {
				delete(m.next, k)
			}
		}
		if len(m.next) >= maxLimited {
			clear(m.next)
		}
	}
	m.next[key] = next.Add(m.every)
	return true
}

func (m *limiter) leave(key netip.Prefix) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.active[key]--; m.active[key] <= 0 {
		delete(m.active, key)
	}
}
