// Package remote runs a probe on several nodes at once.
//
//	Probe ── order ──→ Transport ──→ Serve on node-1: arm … "armed"
//	      ── order ──→ Transport ──→ Serve on node-2: arm … "armed"
//	      all armed ── "send" ──→ the sender's node ── heard
//	      ── "stop" ──→ all: observations, done
//
// Serve is what the hidden command `fairway path-node` does. Its input is one order, a line of JSON, and then the lines
// "send" and "stop". Its output is trace.Line, one a line. A Transport connects both: pods/exec in a cluster, a pipe in
// tests.
//
// Promises:
//   - The probe is sent only when every node that can be watched is armed. A node that cannot is in Record.NotWatched.
//   - Serve ends with its input, with its context, and at the order's deadline, whichever is first.
//   - A node's output is not trusted: it is bounded, and speaks only for the node itself.
package remote
