// Package page serves the local web page of `fairway page`: the live list of Services, the view of one Service, and the
// question which way a packet goes.
//
//	command ── Set, SetState ──→ board ── changes since a version ──→ GET /events ──→ browsers
//	command ←── Source.View, Source.Ask ── GET /service.json, POST /path ←─────────────┘
//
// Promises:
//   - The guard stops requests without the token, and requests from other sites.
//   - A browser that reads slowly costs no memory. There is no queue for a browser: each message has the changes since the
//     last message, and a write that takes too long ends the stream.
//   - The page calls no other site, and its policy forbids inline scripts and styles.
package page
