// Package gatewaybench measures the gateway beside nginx and Caddy: `make bench-gateway`. docs/performance.md keeps the
// figures.
//
//	wrk, h2load ──┬─ nginx                ──┐
//	              ├─ caddy                ──┼─ backend (this process)
//	              └─ gateway server.Server ─┘
//
// Each candidate is a process of its own on loopback. Its table of routes is compiled from objects, as in a cluster. The
// candidates take turns, so the load of the machine is the same for all. The CPU time of a candidate's process for each
// request is the measure that a busy machine changes least.
package gatewaybench
