// Package path predicts the way of the first packet of a connection, from the objects of a cluster.
//
//	Cluster (objects, settings) ─┐         ┌ steps: name, service, node, policy, route, reply
//	Question (FROM, TO, port) ───┼ Predict ┼ candidates: each endpoint, with the reason
//	                             │         ├ verdict: delivered, refused, dropped …
//	                             └─────────┴ findings: one sentence for each cause, with advice
//
// The decisions are those of other packages: service.Lookup and service.Explain, networkpolicy.Explain, records.Resolve.
// This package puts them in order, and says in words what follows.
//
// Promises:
//   - Pure: no kernel, no network, no clock. The same cluster and question give the same Path, in any order of objects.
//   - The last step decides: its state is the verdict.
//   - One fault, one cause. What follows from a cause has no finding of its own. A healthy way has no finding above the
//     level info.
//
// The types of Path have JSON names that programs read.
package path
