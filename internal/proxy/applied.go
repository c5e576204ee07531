package proxy

import (
	"sync"

	"github.com/fairway-net/fairway/internal/service"
)

// Applied is the table that the datapath carries: what the last Sync that succeeded was
// asked for. It is level-triggered, and any number of subscribers may read it. The zero
// value has no table yet. Its methods may be called by any goroutine.
type Applied struct {
	mu    sync.Mutex
	table *service.Table
	wakes []chan struct{}
}

// Table returns the table; nil before the first Sync that succeeded.
func (a *Applied) Table() *service.Table {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.table
}

// Subscribe returns a channel that receives after each Sync that succeeded, and at once if
// there is a table already. One wake-up may stand for many tables.
func (a *Applied) Subscribe() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := make(chan struct{}, 1)
	a.wakes = append(a.wakes, c)
	if a.table != nil {
		c <- struct{}{}
	}
	return c
}

// publish makes t the table and wakes all subscribers.
func (a *Applied) publish(t *service.Table) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.table = t
	for _, c := range a.wakes {
		select {
		case c <- struct{}{}:
		default: // it has one waiting
		}
	}
}
