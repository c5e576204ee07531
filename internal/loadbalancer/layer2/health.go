package layer2

import (
	"context"
	"net/netip"
)

// A Health asks this node's proxy whether it has programmed the kernel. BGP announces next to a Speaker and uses a
// Health of its own. Its methods may be called by any goroutine.
type Health struct{ checks *checks }

// NewHealth returns a Health that asks no port yet.
func NewHealth() *Health { return &Health{newChecks()} }

// Set sets the ports to ask at an address of the node: healthCheckNodePorts of Services, and the proxy's own port.
func (h *Health) Set(addr netip.Addr, ports map[uint16]bool) { h.checks.set(addr, ports) }

// Served returns the last answer of a port; false: no answer yet.
func (h *Health) Served(port uint16) bool { return h.checks.served(port) }

// Changed returns a channel that receives when an answer has changed.
func (h *Health) Changed() <-chan struct{} { return h.checks.wake }

// Run asks until ctx ends.
func (h *Health) Run(ctx context.Context) error { return h.checks.run(ctx) }
