// Package conntrack finds and ends flows in the kernel's table.
//
//	[]Flow ─ plan ─→ filters ─ one dump each ─→ ┌────────┐
//	   │                                        │ kernel │  walks its table and sends the entries that pass the filter
//	   └─ set ─── does a Flow describe it? ←── entry ─┘
//	                      └─ yes: delete by reply tuple and id, or mark for reset ─→ kernel
//
// The kernel translates the first packet of a flow by the rules, and all later packets by the flow's entry. A UDP client
// that keeps its port has one flow for ever. When the flow's endpoint leaves, the client's packets are lost until the entry
// is deleted. When a Service gets its first endpoint, a flow that existed before stays untranslated. A TCP client must
// get a reset: the entry gets a mark, which the rules of package reset match.
//
// Promises:
//   - Exact: only an entry that a flow.Flow describes is deleted. The kernel's answers are compared with the Flows again.
//     A request to delete names the translation and the id, so a newer flow of the same client is not hit.
//   - Cheap: if a few endpoints changed, the kernel searches its table and sends only their flows to this process. If
//     thousands changed, the table is read once, as a stream.
//   - Repeatable: a flow that has already ended is no error.
//   - Bounded: each exchange with the kernel ends with its context.
//
// The package also sets the size and the timeouts of the table (Tuning), and reports when it is nearly full (Room).
// Package share keeps one pod from filling it.
//
// It needs CAP_NET_ADMIN. Before Linux 5.8 the kernel ignores the filters, so each dump copies the whole table.
package conntrack
