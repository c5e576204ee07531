// Package plan decides how the packets of a node's pods reach any address. It is pure: it reads no kernel and no API
// server.
//
//	nodes, their podCIDRs and keys ─┐             ┌ routes to the pods of other nodes, with the next hop
//	networks of the machine ────────┼─ Make ─→ Plan ┼ the VXLAN and the WireGuard device, their peers
//	routers' announcements ─────────┤             ├ masquerading and egress addresses
//	settings ───────────────────────┘             └ problems, with reasons
//	                                         Lookup(address) → next hop, link, why
//
// The same State gives the same Plan, in whatever order the nodes come. A kubelet names the podCIDRs of its own node,
// so harmful podCIDRs are refused (podcidrs.go). If two nodes claim the same range, the older one keeps it.
package plan
