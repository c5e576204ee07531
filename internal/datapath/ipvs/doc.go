// Package ipvs is the datapath in which the kernel's load balancer, IPVS, chooses endpoints.
//
//	Table ─ render ─→ virtual servers, real servers ─ generic netlink ─→ IPVS ──────────┐ chooses
//	            └───→ elements of a constant nft ruleset ─ package nft ─→ conntrack ←───┘ carries
//
// The ruleset (ruleset.nft.tmpl) applies the policy: allowed clients, reject or drop, and masquerading. It sends packets to
// forward to a virtual server, whose scheduler chooses an endpoint for the first packet of each connection. IPVS writes
// the choice into the connection's conntrack entry. From then on the entry translates both directions, and the connection
// no longer needs its real server and its virtual server. So it survives every change here, and a change of the mode.
//
// Virtual servers have addresses of a range that belongs to this datapath, so the datapath never touches a virtual
// server of another program. Frontends of one Service port with equal endpoints share a virtual server, because
// connection counts and affinity belong to the port and not to the address.
//
// Promises beyond the contract of package datapath:
//   - An endpoint is added before the first packet can be sent to it.
//   - A removed endpoint gets no new connection while IPVS still counts its old ones (weight 0). It is removed after
//     Config.Drain at the latest.
//
// It needs ip_vs in the kernel, Linux 5.13 or later, and the program nft.
package ipvs
