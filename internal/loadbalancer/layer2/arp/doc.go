// Package arp answers for load-balancer addresses on the node's own networks, by ARP and by neighbour discovery.
//
//	who has 192.0.2.10? ── AF_PACKET ──→ ┌───────────┐ ──→ reply with the interface's MAC
//	Set(addresses, interfaces) ────────→ │ Responder │ ──→ gratuitous: 5 in 5 s, then every 4 to 5 minutes
//	netlink: links, addresses ─────────→ └───────────┘ ──→ Conflict: another MAC claims the address
//
// The package encapsulates frames, sockets, multicast groups, and interfaces that come and go. The election decides
// which addresses the node may answer for, and the fence mutes the node when it may not. The package's promises:
//
//   - After Set has returned, no address is answered for that Set leaves out.
//   - It answers on interfaces that can be a network's: no loopbacks, members of bridges or links of pods.
//   - It reads frames within bounds.
//   - Run and everything that Run started end with Run's context.
package arp
