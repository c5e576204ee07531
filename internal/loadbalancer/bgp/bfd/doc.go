// Package bfd finds out within a second that a router is gone, or the way to it: Bidirectional
// Forwarding Detection, in asynchronous mode, over one hop (RFC 5881) or several (RFC 5883).
//
//	Watch.Set: routers ─→ session (RFC 5880, pure) ⇄ UDP ports 3784, 4784
//	                          └─ Change: up, down and why
//
// It hides packets, timers and sockets. It promises: what the kernel has received is read before
// a router is said to be silent, so that a process which had to wait for the processor gives no
// false alarm of its own; packets of a single hop count only if no router has passed them on;
// ports are open only while there are sessions; a session that is not wanted any more says so, and
// is no failure to the router. It has no authentication and no echo function.
package bfd
