package rib

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// A Memory is what a Dir is, within one process: a speaker that announces no podCIDRs and is asked what
// routers do. Its methods may be called by any goroutine.
type Memory struct {
	mu       sync.Mutex
	received []Route
	watching map[chan struct{}]struct{}
}

// NewMemory returns a Memory of what routers had announced before, as far as that is known.
func NewMemory(received []Route) *Memory {
	return &Memory{received: slices.Clone(received), watching: map[chan struct{}]struct{}{}}
}

// PodCIDRs returns none.
func (m *Memory) PodCIDRs() ([]netip.Prefix, error) { return nil, nil }

// Asked reports that somebody wants to know what routers announce.
func (m *Memory) Asked() (bool, error) { return true, nil }

// SetReceived says what the routers have announced, in this order.
func (m *Memory) SetReceived(all []Route) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Equal(m.received, all) {
		return nil
	}
	m.received = slices.Clone(all)
	for w := range m.watching {
		select {
		case w <- struct{}{}:
		default:
		}
	}
	return nil
}

// Received is what routers have announced.
func (m *Memory) Received() ([]Route, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.received), nil
}

// Watch calls changed at once and when Received has changed, until ctx ends.
func (m *Memory) Watch(ctx context.Context, changed func(), _ func(error)) {
	w := make(chan struct{}, 1)
	m.mu.Lock()
	m.watching[w] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watching, w)
	}()
	for {
		changed()
		select {
		case <-ctx.Done():
			return
		case <-w:
		}
	}
}
