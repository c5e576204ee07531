// Package reset ends TCP connections whose endpoint is gone for good, at once: the
// client reads ECONNRESET, instead of waiting for its own timeouts.
//
//	Entry ─ Reset ─→ doom in conntrack: mark, 5 s to live
//	                 table inet fairway-reset: doomed flows are answered with RST
//	                 provoke: one packet to each end ──→ client ┐
//	                 RST ←─────────── its answer ←──────────────┘
//
// A reset counts only with the sequence number that the client expects next, which
// nobody but the client knows: the kernel's memory of flows does not tell it. So the
// client is made to say it. It gets a packet that makes no sense in its connection, and
// answers with an acknowledgement (RFC 5961), which has the number; a rule answers that
// with the reset. A client that happens to send by itself meets the same rule.
//
// It hides how a packet is forged and how it passes the node's own rules, which would
// take it for a new connection: it is not tracked. It promises:
//   - Only entries that are passed are hit. A connection of the same client to another
//     endpoint is not: rules see the mark of the entry.
//   - Nothing stays: an entry goes by itself 5 s later, so that the client's port can be
//     used again; the table goes a little after the last of them, and Clean removes one
//     that a killed agent left. As long as nothing ends, no packet meets a rule of ours.
//   - One mechanism for all that translate by conntrack: the rules look before any of them.
//
// The other end is provoked too, for an endpoint that may still run (it is not ready any
// more, and the Service wants that to end connections). What does not answer the
// provocations is left alone: when it sends after all, its connection is unknown, and
// whoever gets the packet resets it.
package reset
