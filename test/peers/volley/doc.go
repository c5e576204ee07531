// Package volley sends the first packets of many flows at once. It reports the result of each: the endpoint that got the
// packet, the source address that the endpoint saw, and the answer.
//
//	client's station ─ raw SYN, datagram, INIT ─→ node (NAT) ─→ endpoint's station
//	       ↑                                                         │ raw socket: both addresses
//	       └─ SYN-ACK, reset, datagram, INIT-ACK, ICMP error ←───────┘
//
// A connection costs a test twenty system calls and as many packets. A probe costs three packets, and thousands are sent
// before the first result is read. The kernels at both ends work as usual: the listener answers the SYN, and the client's
// kernel resets answers that it did not ask for. Many kernels have no SCTP sockets, so this package answers SCTP itself.
//
// Promises:
//   - Every probe has its own ports and sequence number, so every answer belongs to one probe.
//   - Fire returns early only when no result is missing.
package volley
