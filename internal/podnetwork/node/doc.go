// Package node makes one machine carry pods. It installs the CNI plugin and its configuration, lets the kernel forward,
// and keeps a route to the pods of every other node. It keeps pods from sending with false source addresses, and
// masquerades their packets to the world.
//
//	node a 192.0.2.1                          node b 192.0.2.2
//	pods 10.244.1.0/24                        pods 10.244.2.0/24
//	10.244.2.0/24 via 192.0.2.2 -- network -- 10.244.1.0/24 via 192.0.2.1
//	          \                                   /
//	           `- to the world, from 192.0.2.1 --'
//
// Package plan decides, and this package reads the state and writes the plan: routes, sysctls, the nft tables inet
// fairway-pods and inet fairway-egress, and files. Package tunnel makes the devices through which nodes behind a router
// are reached. Package obstacles finds firewalls in the way.
//
// Promises:
//
//   - Sync takes the whole wanted state at any time. It writes only the differences from the kernel and the disk.
//   - It changes only its own routes (protocol 70), nft tables, links and files.
//   - A bad peer is reported once, and disturbs no other peer.
//   - The CNI configuration comes last: kubelet reports the node Ready only when pods can work.
package node
