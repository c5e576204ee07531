// Package podroutes is how a node's agent and its speaker exchange routes to pods: files in a directory of the node. Each
// file has one writer.
//
//	agent   ─ podcidrs ─→ speaker ─ BGP ─→ routers: this node leads to these prefixes
//	agent   ←─ received ─ speaker ←─ BGP ─ routers: these prefixes are behind us
//	agent   ←─ owners ─── speaker ←─ election ─ speakers: these nodes announce these addresses
//
// The speaker has the one session that a router accepts from a node. Only the agent writes routes into the kernel, and
// decides which routes to trust. The package encapsulates the format of the files and how changes are noticed.
//
// Promises:
//   - A reader never sees half a file.
//   - The files outlive both programs, and end with the machine's boot.
//   - An unchanged value is not written.
package podroutes
