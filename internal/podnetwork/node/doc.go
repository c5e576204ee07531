// Package node makes one machine carry pods: it installs the CNI plugin and its
// configuration, lets the kernel forward, keeps a route to the pods of every
// other node, keeps pods from sending from addresses that are not theirs, and
// masquerades what they send out of the cluster. It hides the
// routing table, the VXLAN device, sysctls, the nft table inet fairway-pods and the
// CNI directories behind Sync and Cleanup.
//
//	node a 192.0.2.1                          node b 192.0.2.2
//	pods 10.244.1.0/24                        pods 10.244.2.0/24
//	10.244.2.0/24 via 192.0.2.2 -- network -- 10.244.1.0/24 via 192.0.2.1
//	          \                                   /
//	           `- to the world, from 192.0.2.1 --'
//
// A router in between would not know the pods' addresses. Nodes behind one are reached through a
// VXLAN device of the kernel's (WayVXLAN, WayAuto), or reported and left out (WayRoutes).
//
// Promises: Sync may be called at any time with the whole wanted state, changes
// only what differs from what the kernel and the disk hold, and touches only
// what is ours: routes of protocol 70, our own nft table, our own files. One bad
// peer is reported once and disturbs no other. The CNI configuration is
// written last: kubelet reports the node Ready only when pods can work.
package node
