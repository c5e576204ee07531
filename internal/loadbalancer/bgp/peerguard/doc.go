// Package peerguard keeps others from speaking to the node's BGP routers with the node's address.
//
//	BGPPeers ── Set ─→ Guard ── Run ─→ table inet fairway-peers: address . protocol . port of routers
//	pod's packet to a router's port 179 ─ masqueraded ─ postrouting: dropped
//
// A router knows a node by its address, and often by nothing else. A packet that the node forwards gets this address if
// the CNI plugin, a Service or another program masquerades it. The table drops the packet if its destination is the BGP
// or BFD port of a router. Packets that keep their own address pass: the router can tell them from the node's.
//
// The table exists while the node has BGPPeers, also while the speaker is replaced.
package peerguard
