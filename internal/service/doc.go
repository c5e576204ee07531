// Package service decides what a node does for a Kubernetes Service. All other packages fetch its input or render its
// output.
//
//	Service ─┐
//	Slices  ─┼─ Compile ─→ Entry ─→ Builder.Set ─→ *Table ─→ a datapath's Sync
//	Facts ───┘  (pure)      one      (who owns an    (immutable)    │
//	                      Service     address)          └── Diff ───┘
//
//	Lookup(Table, Packet) ─→ Decision: the action for a packet, and the reason
//	Explain(Service, Slices, Facts) ─→ an Explanation for each endpoint: used, or the reason why not
//
// The package encapsulates the rules of kube-proxy: the endpoints that a node may use, the answer if there are none, the
// packets that are masqueraded. A Table has only results. A datapath therefore needs no condition about policy; if it
// needs one, a field is missing in the Table.
//
// The package promises:
//   - Pure: no I/O, no clock, no goroutine. The same input gives the same Table, in any order.
//   - Complete: for every address that this node answers for, the Table decides about packets from every place.
//   - One evaluator: Explain uses the predicates of Compile, and every datapath does what Lookup says.
//   - Harmless: an object that makes no sense loses only its own Frontends, and a Problem reports it.
//   - Cheap: a changed Service makes a new Table that shares the rest. Diff of two such Tables examines only the changes.
//   - Bounded: one pass of the loop can carry a Service at the Limits.
//
// Only the standard library is imported.
package service
