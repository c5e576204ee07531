package podroutes

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// A Memory replaces a Dir within one process, for a speaker that announces no podCIDRs and receives routes. Any goroutine
// may call its methods.
type Memory struct {
	mu       sync.Mutex
	received []Route
	watching map[chan struct{}]struct{}
}

// NewMemory returns a Memory with the routes that routers are known to have announced before.
func NewMemory(received []Route) *Memory {
	return &Memory{received: slices.Clone(received), watching: map[chan struct{}]struct{}{}}
}

// PodCIDRs returns none.
func (m *Memory) PodCIDRs() ([]netip.Prefix, error) { return nil, nil }

// Asked reports that there is a reader of the received routes.
func (m *Memory) Asked() (bool, error) { return true, nil }

// SetReceived stores the routes that routers have announced, in this order.
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

// Received returns the routes that routers have announced.
func (m *Memory) Received() ([]Route, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.received), nil
}

// Watch calls changed at once, and after each change of Received, until ctx ends.
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
