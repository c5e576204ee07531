package layer2

import (
	"context"
	"net/netip"
)

// A Health asks the node's proxy whether it has programmed the kernel, for what announces beside
// a Speaker (BGP). Its methods may be called by any goroutine.
type Health struct{ checks *checks }

// NewHealth returns a Health that asks nothing yet.
func NewHealth() *Health { return &Health{newChecks()} }

// Set says which ports are asked, at an address of the node: healthCheckNodePorts of Services, and
// the proxy's own.
func (h *Health) Set(addr netip.Addr, ports map[uint16]bool) { h.checks.set(addr, ports) }

// Served reports the last answer; false: there is none yet.
func (h *Health) Served(port uint16) bool { return h.checks.served(port) }

// Changed receives when an answer has changed.
func (h *Health) Changed() <-chan struct{} { return h.checks.wake }

// Run asks until ctx ends.
func (h *Health) Run(ctx context.Context) error { return h.checks.run(ctx) }
