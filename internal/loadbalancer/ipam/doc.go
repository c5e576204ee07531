// Package ipam decides which addresses Services of type LoadBalancer have.
//
//	IPAddressPools ──→ SetPools ─┐              ┌─→ Decision: addresses, pool, events
//	Services ────────→ Set ──────┼── Decide() ──┤
//	nodes, ServiceCIDRs → Reserve┘              └─→ Report: pools' use, what is wrong
//
// It hides how pools are written, which of them is for which Service, who may share an address
// and who waits for one. It promises:
//   - Pure: values in, values out, no clock, no chance, no API server. The same calls give
//     the same Decisions; the order of calls between two Decides does not matter.
//   - Adopted before given: what the statuses of Services say is taken over before any address
//     is given, so that a restart changes nothing.
//   - In use is in use: an address leaves a Service only when the Service asks for another one,
//     needs it no more, or comes into conflict with another by a change of its own. A pool that
//     shrinks, goes or overlaps with another takes none away; Report says what is kept.
//   - Only pool addresses: never one that is Reserved, or in a pool that is not for the Service.
//   - No two Services have one address, unless both have the same sharing key, different ports,
//     and the same backing.
//   - Whoever waits gets what it waits for as soon as that is free, the oldest first.
//   - Cost follows the change: BenchmarkChange.
package ipam
