// Package flow finds the flows that a change of the Services made wrong, and has them ended.
//
//	tables ── Wanted ──→ ┌────────────┐ ── EndFlows, AuditFlows ──→ Enders: conntrack, user space
//	         Reconcile → │ Reconciler │ ←─ unconfirmed flows that exist ─┘
//	                     └────────────┘ ── is the pod gone? ──→ PodLookup
//
// The rules translate only the first packet of a flow. The kernel (conntrack), or a datapath in user space, remembers the
// endpoint for all later packets, and a change of the rules does not change that memory. Without this package a UDP client
// that keeps its port would send to a removed endpoint for ever, and a TCP client would wait for its own timeouts.
//
//   - Stale compares two tables and returns the flows that the change made wrong.
//   - A Checker decides about one existing flow by one table, after a start.
//   - A Reconciler decides when the Enders search for wrong flows, and asks the API server whether a pod is gone.
//   - Package conntrack ends flows of the kernel. Package reset resets TCP connections.
//
// Promises:
//   - Level-triggered: a Reconciler compares all tables that the kernel may have used since the last successful search.
//     It does not end a flow that the newest table allows again.
//   - Bounded: searches take at most a twentieth of the time, and no client waits longer than longestPause for one.
//     Requests about pods are few and paced. Each has a deadline, and none waits for another.
//   - Careful: a connection to a pod that may be alive continues until the API server says that the pod is gone. So does
//     a connection to an endpoint that is not known to be a pod: no EndpointSlice names a pod for it, and its address is
//     outside the pods' ranges.
//
// The package does not touch the kernel; Enders do. All methods of a Reconciler except Run and Wake belong to the
// goroutine that programs the tables.
package flow
