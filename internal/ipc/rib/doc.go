// Package rib is what a node's agent and its speaker tell each other about routes to pods:
// files in a directory of the node, each written by one of them.
//
//	agent   ─ podcidrs ─→ speaker ─ BGP ─→ routers: this node leads to these
//	agent   ←─ received ─ speaker ←─ BGP ─ routers: these prefixes are behind us
//	agent   ←─ owners ─── speaker ←─ election ─ speakers: these nodes announce these addresses
//
// The speaker has the one session that a router accepts from a node; the agent alone writes
// routes into the kernel, and alone decides which it believes. It hides the files' format, how
// they are replaced, and how changes are noticed. It promises: a reader never sees half a file; what
// is there outlives both programs, and ends with the machine's boot; what has not changed is not written.
package rib
