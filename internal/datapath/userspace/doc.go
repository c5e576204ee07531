// Package userspace is the datapath that carries every connection itself: the kernel
// only hands them over.
//
//	client ─ packet to a frontend ─→ nft: tproxy ─→ listener ─ relay ─→ socket ─→ endpoint
//	                                   ↑ one for each scope      │
//	                                   │ and family          picks, tries the next one
//	Table ─ Sync ─┬─ elements: whom to hand over, refuse, drop   │
//	              └─ fronts: endpoints, algorithms, affinity ────┘
//
// It hides sockets, splicing, flows and the rules that steer packets to them. Because it
// sees whether an endpoint answers, a connection whose endpoint refuses, is silent or
// resets before it said a byte goes to the next one, and the client never knows.
//
// It promises, beyond the contract in package datapath:
//   - As many listeners as scopes and families, however many Services there are.
//   - A connection costs two sockets, two goroutines and, while bytes are under way, a
//     buffer or a pipe in each direction; who does not read is not read from.
//   - Everything that Dump says is in the kernel, in sets that a person can list, and so
//     are the clients with affinity: only connections end with the process.
//   - It stays in the network namespace of the goroutine that calls Sync, although its
//     own goroutines run anywhere.
//
// Unlike other datapaths it runs goroutines, from the first Sync to Close, which ends all
// of them and with them the connections.
package userspace
