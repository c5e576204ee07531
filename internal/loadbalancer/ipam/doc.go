// Package ipam decides which addresses Services of type LoadBalancer have.
//
//	IPAddressPools ──→ SetPools ─┐              ┌─→ Decision: addresses, pool, events
//	Services ────────→ Set ──────┼── Decide() ──┤
//	nodes, ServiceCIDRs → Reserve┘              └─→ Report: pools' use, what is wrong
//
// The package encapsulates the ranges of pools, the choice of a pool, shared addresses, and the queue of waiting Services.
//
// Promises:
//   - Pure: values in, values out, no clock, no chance, no API server. The same calls give the same Decisions. The order
//     of calls between two Decides does not matter.
//   - Adopt, then give: the Allocator first adopts the addresses in the statuses of Services, so a restart changes nothing.
//   - In use is in use: a Service loses an address only if it asks for another one, does not need it any more, or causes a
//     conflict by a change of its own. A pool that shrinks, goes or overlaps takes no address away. Report has the Services
//     with such addresses.
//   - A Service gets only addresses of its pools, and no reserved ones.
//   - Two Services share an address only with the same sharing key, different ports, and the same backing.
//   - A waiting Service gets an address as soon as it is free, the oldest Service first.
//   - The cost depends on the change (BenchmarkChange).
package ipam
