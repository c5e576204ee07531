// Package trace is the record of one probe packet: what each node saw of it, and the way that follows from these facts.
//
//	node-1: observe ─ []Observation ─┐
//	node-2: observe ─ []Observation ─┼─→ Follow ─→ Way: hops in order, translations, the end, findings
//	sender: probe ─── Heard ─────────┘
//
// An Observation is one fact of one node: a rule that judged the packet, a change of a conntrack entry, a packet that the
// kernel freed and its reason, or the state of something that the packet needed (a listener, a route, a sysctl). Follow
// joins the facts of all nodes without their clocks: the TTL says which node came first, and conntrack says which
// addresses belong together.
//
// Promises:
//   - Pure: no kernel, no network, no clock. Equal observations give an equal Way, in any order of the nodes.
//   - A Way says only what a node saw. A node that nobody watched is in Way.NotWatched, and a packet is never called lost
//     there.
//   - The first cause ends the Way. What follows from this cause (a timeout, a missing reply) is no cause of its own.
package trace
