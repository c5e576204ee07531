// Package service is the one place where the meaning of a Kubernetes Service is
// decided. Everything else fetches its input or renders its output.
//
//	Service ─┐
//	Slices  ─┼─ Compile ─→ Entry ─→ Builder.Set ─→ *Table ─→ a datapath's Sync
//	Node ────┘  (pure)      one      (whose is an    (immutable)    │
//	                      Service     address)          └── Diff ───┘
//
//	Lookup(Table, Packet) ─→ Decision: what becomes of a packet, and why
//	Explain(Service, Slices, Node) ─→ an Explanation for each endpoint: used, or why not
//
// It hides every rule of kube-proxy: which endpoints a node may use, what happens
// when there are none, which packets are masqueraded. A Table carries only
// results, so that a datapath never needs an "if" about policy; one that does has
// found a field that is missing here.
//
// It promises:
//   - Pure: no I/O, no clock, no goroutine; the same input gives the same Table,
//     in whatever order the input came.
//   - Complete: a Table says for every address this node answers for what becomes
//     of a packet, from every place it may come from.
//   - One evaluator: what Explain says is decided by the predicates of Compile, and
//     what Lookup says is what every datapath does.
//   - Harmless: an object that makes no sense costs its own Frontends only, and is
//     reported as a Problem.
//   - Cheap: a changed Service makes a new Table that shares the rest; Diff of two
//     such Tables looks at what changed.
//
// Only the standard library is imported.
package service
