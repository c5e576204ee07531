// Package reset resets TCP connections whose endpoint is gone for good, at once: the client
// reads ECONNRESET instead of waiting for its own timeouts.
//
//	Entry ─ Reset ─→ mark for reset in conntrack: mark, 5 s to live
//	                 table inet fairway-reset: packets of marked entries are answered with RST
//	                 challenge: one invalid segment to each end ──→ client ┐
//	                 RST ←───────────── its acknowledgement ←──────────────┘
//
// A reset is valid only with the sequence number that the client expects next. The client
// alone knows it: conntrack's entries do not have it. So the client is made to send it. It
// gets a segment that is invalid in its connection and answers with a challenge ACK (RFC
// 5961), which has the number; a rule answers that with the reset. A client that happens to
// send by itself meets the same rule.
//
// It hides how a segment is forged and how it passes the node's own rules, which would take
// it for a new connection: it is not tracked. It promises:
//   - Only the entries that are passed are reset. A connection of the same client to another
//     endpoint is not: rules match the mark of the entry.
//   - Nothing stays: an entry ends by itself 5 s later, so that the client's port can be used
//     again; the table is removed a little after the last of them, and a start removes one
//     that a killed agent left. As long as no connection ends, no packet meets a rule of ours.
//   - One mechanism for all datapaths that translate by conntrack: the rules are hooked
//     before theirs.
//
// The endpoint's end is challenged too, for an endpoint that may still run (it is not ready
// any more, and the Service wants that to end connections). An end that does not answer
// either challenge is left alone: when it sends after all, its connection is unknown, and
// the host that gets the packet resets it.
//
// It is not a part of package conntrack, which speaks to one table of the kernel and is read
// by whatever wants to see flows. This package needs nft rules and raw sockets besides, and
// a goroutine that paces them; and it knows no flow but the entries that it is given.
package reset
