// Package bfd finds out within a second that a router, or the way to it, is gone. It speaks Bidirectional Forwarding
// Detection in asynchronous mode, over one hop (RFC 5881) or several (RFC 5883).
//
//	Watch.Set: routers ─→ session (RFC 5880, pure) ⇄ UDP ports 3784, 4784
//	                          └─ Change: up, down and why
//
// The package encapsulates packets, timers and sockets. It has no authentication and no echo function. Its promises:
//
//   - It reads all packets in the kernel before it calls a router silent, so that a process that had to wait for the
//     processor gives no false alarm.
//   - Packets of a single hop count only if no router has passed them on.
//   - A packet without this node's random number does not end a session that is up.
//   - Ports are open only while there are sessions.
//   - A session that is not wanted any more says so, which is no failure to the router.
package bfd
