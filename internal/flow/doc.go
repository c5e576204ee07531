// Package flow ends what is remembered of clients whose endpoint is gone.
//
//	tables ── Wanted ──→ ┌────────────┐ ── EndFlows, AuditFlows ──→ Enders: conntrack | user space
//	         Reconcile → │ Reconciler │ ←─ exists, unconfirmed ──────┘
//	                     └────────────┘ ── is the pod gone? ──→ PodLookup
//
// The first packet of a flow is translated by the rules and all later ones by memory: the
// kernel's (conntrack), or that of a datapath in user space. A change of the rules does not
// touch that memory. So a UDP client that keeps its port would send to an endpoint that is
// gone for ever, and a TCP client would wait for its own timeouts.
//
// It hides which flows a change made wrong (Stale), which existing flows a table does not
// allow (Checker), when the memory is searched, and how it is found out whether a pod is
// gone. It promises:
//   - Level-triggered: what must end follows from all tables that the kernel may have worked
//     by since the last search that succeeded. What became right again is not ended.
//   - Bounded: at most a twentieth of the time goes into searches, and no client waits for
//     one longer than a moment. Questions about pods are few at a time and paced, each has a
//     deadline, and none waits for the answer to another.
//   - Careful: a connection to a pod that may live goes on until an answer says that the pod
//     is gone. Without an answer it goes on, and so does one to an endpoint that nothing says
//     is a pod: neither an EndpointSlice's targetRef nor the pods' ranges.
//
// It does not touch the kernel: Enders do. A Reconciler belongs to the goroutine of the loop
// that programs the tables, but for Run.
package flow
