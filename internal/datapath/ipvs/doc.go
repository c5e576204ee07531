// Package ipvs is the datapath that lets the kernel's load balancer, IPVS, choose.
//
//	Table ─ render ─→ virtual servers, real servers ─ generic netlink ─→ IPVS ──────────┐ chooses
//	            └───→ elements of a constant nft program ─ package nft ─→ conntrack ←───┘ carries
//
// The program (ruleset.nft.tmpl) decides what policy has decided: who may come in, reject
// or drop, whose source is replaced. What is to be forwarded it sends to a virtual
// server, whose scheduler picks an endpoint for the first packet of each connection.
// IPVS writes that into the connection's conntrack entry, and from there on the entry
// translates, in both directions. So a connection needs neither its real server nor the
// virtual one any more: it outlives every change here, and the move to another mode.
//
// It hides netlink, how frontends share virtual servers, and the addresses of those:
// they are the datapath's own, so that it never touches a virtual server of others.
// Frontends of one Service port that have the same endpoints share one, because the
// counts of connections and the places of clients belong to the port, not the address.
//
// It promises, beyond the contract in package datapath, that an endpoint is there before
// the first packet can be sent to it, and that an endpoint which leaves gets no new
// connection while IPVS still counts those it has (weight 0), for Drain at most.
//
// It needs ip_vs in the kernel, 5.13 or later, and the program nft.
package ipvs
