// Package top turns what the nodes' kernels know of connections into the traffic of Services, second by second.
//
//	on each node:    conntrack's entries ── Tally ──┐
//	                 rules' counters ───────────────┴→ Sample (cumulative, one line of JSON)
//	on your machine: Samples of all nodes ── View ──→ Frame: a row for each Service port, or for each endpoint of one
//	                                                    └→ table, or JSON
//
// A connection is counted on the node that translates it, so no connection counts twice.
//
// Promises:
//   - Pure: no kernel, no network, no clock.
//   - Bounded: a Tally keeps one record for each connection of a Service, at most MaxEntries. A Sample has at most
//     MaxRows Service ports and endpoints. Whatever is left out is counted.
//   - Nothing is silently zero. A node that does not answer, and a figure that a kernel does not have, is in the Frame's
//     notes. An unknown figure is nil, and "-" in the table.
//   - A Sample of a node is not trusted: Check refuses names that Kubernetes could not have given.
package top
