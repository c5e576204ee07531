// Package l2 answers for load-balancer addresses on the node's own networks, by ARP and by
// neighbour discovery.
//
//	who has 192.0.2.10? ── AF_PACKET ──→ ┌───────────┐ ──→ reply with the interface's MAC
//	Set(addresses, interfaces) ────────→ │ Announcer │ ──→ gratuitous: 5 in 5 s, then every 4 to 5 minutes
//	netlink: links, addresses ─────────→ └───────────┘ ──→ Conflict: another MAC says it has it
//
// It hides frames, sockets, multicast groups and interfaces that come and go. Which addresses
// the node may answer for is the election's to say; that it is silent when it may not, the
// fence's.
//
// It promises that what Set leaves out is not answered for after Set has returned; that it
// answers on interfaces that can be somebody's network (not on loopbacks, members of a bridge,
// pods' links); that it reads frames within bounds; and that Run ends with its context, and
// all that it started with it.
package arp
