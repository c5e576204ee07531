// Package userspace is the datapath that relays every connection itself: the kernel only
// passes them to the proxy.
//
//	client ─ packet to a frontend ─→ nft: tproxy ─→ listener ─ relay ─→ socket ─→ endpoint
//	                                   ↑ one for each scope      │
//	                                   │ and family          picks, tries the next one
//	Table ─ Sync ─┬─ elements: proxy, reject or drop             │
//	              └─ frontends: endpoints, algorithms, affinity ─┘
//
// It hides sockets, splicing, flows and the rules that steer packets to them. Because it
// sees whether an endpoint answers, it retries a connection with the next endpoint if the
// endpoint refuses, is silent or resets before its first byte. The client does not notice.
//
// It promises, beyond the contract in package datapath:
//   - As many listeners as scopes and families, however many Services there are.
//   - A connection costs two sockets, two goroutines and, while bytes are in transit, a
//     buffer or a pipe in each direction; a slow reader slows down its sender.
//   - Everything that Adopt returns is in the kernel, in sets that a person can list, and
//     so are the clients with affinity: only connections end with the process.
//   - It stays in the network namespace of the goroutine that calls Sync, although its
//     own goroutines run anywhere.
//
// Unlike other datapaths it runs goroutines, from the first Sync to Close. Close ends all
// goroutines and connections.
package userspace
