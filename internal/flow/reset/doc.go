// Package reset resets TCP connections whose endpoint is gone: the client reads ECONNRESET at once, instead of waiting for
// its own timeouts.
//
//	Entry ─ Reset ─→ mark for reset in conntrack: a mark, and a timeout of 5 s
//	                 table inet fairway-reset answers packets of marked entries with RST
//	                 challenge: one invalid segment to each end ──→ client ┐
//	                 RST ←───────────── its challenge ACK ←────────────────┘
//
// A reset is valid only with the sequence number that the client expects next. Only the client knows that number, because
// conntrack entries do not have it. So the Resetter sends the client a segment that is invalid in its connection. The client
// answers with a challenge ACK (RFC 5961), which has the number. A rule answers the ACK with a reset. A client that sends
// by itself meets the same rule. The forged segments are not tracked, so the node's own rules do not take them for new
// connections.
//
// Promises:
//   - Only the given entries are reset. Rules match the mark of the entry, so a connection of the same client to another
//     endpoint continues.
//   - No trace stays. A marked entry ends after 5 s, and then the client can use its port again. The table is removed
//     10 s after the last reset. A start removes the table of a killed agent.
//   - The rules are hooked before those of all datapaths that translate by conntrack, so one mechanism serves all.
//
// The endpoint gets a challenge too, because it may still run: an endpoint that is not ready, of a Service that ends
// connections to such endpoints. An end that answers neither of two challenges is left alone. If it sends later, its
// connection is unknown, and the host that gets the packet resets it.
//
// The package is separate from conntrack, which speaks to one table of the kernel for all who want to read flows. This
// package also needs nft rules, raw sockets and a goroutine that paces them.
package reset
