// Package share keeps one pod from filling the conntrack table that all pods of a node share.
//
//	count and limit ── table nearly full? ── one dump ─→ flows of each pod ─→ pods over their share
//	                                                                                 │
//	pod's packet ─ conntrack: new ─ prerouting: dropped ←─ table inet fairway-conntrack
//
// While the table is nearly full, a pod may have as many flows as the table has free entries. So several greedy pods
// leave room too. A pod over its share opens no new connections, and its open connections go on.
//
// Counting in the kernel (ct count) makes each new connection of each pod expensive. So the agent counts, and only while
// the table is nearly full.
package share
