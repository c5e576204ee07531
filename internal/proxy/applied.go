package proxy

import (
	"sync"

	"github.com/fairway-net/fairway/internal/service"
)

// Applied is the table that the datapath carries: the table of the last successful Sync. It is level-triggered. Any
// number of subscribers may read it, from any goroutine. The zero value has no table yet.
type Applied struct {
	mu    sync.Mutex
	table *service.Table
	wakes []chan struct{}
}

// Table returns the table; nil before the first successful Sync.
func (a *Applied) Table() *service.Table {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.table
}

// Subscribe returns a channel that receives after each successful Sync, and at once if there already is a table. One
// wake-up may stand for several tables.
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
		default: // a wake-up is already waiting
		}
	}
}
