// Package volley sends the first packets of many flows at once and reports what became of
// each: the endpoint that got it, the source that it saw, and what came back.
//
//	client's station ─ raw SYN, datagram, INIT ─→ node (NAT) ─→ endpoint's station
//	       ↑                                                         │ raw socket: both addresses
//	       └─ SYN-ACK, reset, datagram, INIT-ACK, ICMP error ←───────┘
//
// A connection costs a test twenty system calls and as many packets; a probe costs three
// packets and no test waits for it, so that thousands go out before the first is looked
// at. The kernels at both ends play their ordinary parts: the listener answers the SYN,
// the client's kernel resets what it has not asked for. SCTP, which has no sockets on
// many kernels, is answered here.
//
// It promises that every probe has its own ports and sequence number, so that no answer
// is taken for another's, and that Fire returns early only when nothing is missing.
package volley
