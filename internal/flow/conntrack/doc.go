// Package conntrack finds and ends flows in the kernel's table.
//
//	[]Flow ─ plan ─→ filters ─ one dump each ─→ ┌────────┐
//	   │                                        │ kernel │  walks its table, sends what the filter lets through
//	   └─ set ──── is it one of them? ←─ entry ─└────────┘
//	                      └─ yes: delete by reply tuple and id, or mark for reset ─→ kernel
//
// The kernel translates the first packet of a flow by the rules and all later ones by
// memory. A UDP client that keeps its port has one flow for ever: when its endpoint
// leaves, the client's packets are lost until the flow is deleted, and when a Service gets
// its first endpoint, a flow that passed before stays untranslated. The client of a TCP
// connection must be sent a reset: the entry gets a mark, which rules match (package reset).
//
// It hides ctnetlink: how the kernel is made to search by itself, which parts of its
// filter cannot be trusted, and what is done on a kernel without one. It promises:
//   - Exact: only an entry that a flow.Flow describes is deleted. Every answer of the kernel is
//     checked here; an entry is deleted by its translation and its id, so that a flow of
//     the same client which began meanwhile, to another endpoint, is not hit.
//   - Cheap: for a change of a few endpoints the table is searched by the kernel and
//     nothing but those flows is copied to this process; for a change of thousands it
//     is read once, in a stream, and never held.
//   - Repeatable: a flow that is gone already is no error.
//   - Bounded: every exchange with the kernel ends when its context does.
//
// Besides it sets how many flows the node remembers, and for how long (Tuning).
//
// It needs CAP_NET_ADMIN, and a kernel of 5.8 or later to be cheap.
package conntrack
