// Package userspace is the datapath that relays every connection in this process. The kernel only hands the connections over.
//
//	client ─ packet to a frontend ─→ nft: tproxy ─→ listener ─ relay ─→ socket ─→ endpoint
//	                                   ↑ one for each scope      │
//	                                   │ and family          chooses; tries the next endpoint
//	Table ─ Sync ─┬─ elements: proxy, reject or drop             │
//	              └─ frontends: endpoints, algorithms, affinity ─┘
//
// The proxy sees whether an endpoint answers. If the endpoint refuses, is silent, or resets before its first byte, the proxy
// tries the next endpoint, and the client sees no error.
//
// Promises beyond the contract of package datapath:
//   - There is one listener for each scope and family, however many Services there are.
//   - A connection costs two sockets and two goroutines. While bytes are in transit it also has a buffer or a pipe in
//     each direction. A slow reader slows down its sender.
//   - The kernel has everything that Adopt returns, in sets that a person can list. It also has the clients with
//     affinity. Only connections end with the process.
//   - All sockets are in the network namespace of the goroutine that calls Sync, although the package's own goroutines
//     run on any thread.
//
// Unlike other datapaths it runs goroutines, from the first Sync to Close. Close ends all goroutines and connections.
package userspace
