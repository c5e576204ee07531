// Package ipvs is the datapath that lets the kernel's load balancer, IPVS, choose.
//
//	Table ─ render ─→ virtual servers, real servers ─ generic netlink ─→ IPVS ──────────┐ chooses
//	            └───→ elements of a constant nft program ─ package nft ─→ conntrack ←───┘ carries
//
// The program (ruleset.nft.tmpl) applies the policy: which clients are allowed, reject or
// drop, and whether the source is masqueraded. It sends packets to forward to a virtual
// server, whose scheduler picks an endpoint for the first packet of each connection.
// IPVS writes the choice into the connection's conntrack entry. From then on the entry
// translates, in both directions. So a connection no longer needs its real server and its
// virtual server: it survives every change here, and the move to another mode.
//
// It hides netlink, how frontends share virtual servers, and the addresses of virtual
// servers: the addresses are the datapath's own, so that it never touches a virtual server
// of another program. Frontends of one Service port with the same endpoints share one,
// because connection counts and affinity belong to the port, not the address.
//
// It promises, beyond the contract in package datapath, that an endpoint is added before
// the first packet can be sent to it, and that a removed endpoint gets no new connection
// while IPVS still counts its old ones (weight 0), for Config.Drain at most.
//
// It needs ip_vs in the kernel, 5.13 or later, and the program nft.
package ipvs
