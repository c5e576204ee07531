// Package cni is the CNI plugin that wires a pod to its node: one veth pair,
// addresses from the node's podCIDRs, routes, and nothing else. It hides links,
// neighbours, sysctls and the address store behind the verbs of the CNI
// specification 1.1 (ADD, DEL, CHECK, GC, STATUS, VERSION); configurations of
// versions 0.3.1 to 1.1.0 are understood.
//
//	pod's namespace                         node's namespace
//	eth0  10.244.1.5/32  fd00::5/128 ===== fw3f9a1c22b04e   (no address)
//	default via 169.254.1.1, fe80::1        10.244.1.5/32 dev fw3f9a1c22b04e
//
// There is no bridge: the node routes between its pods, so that every packet
// passes the node's netfilter hooks, where the Service proxy works, and also a
// packet that goes back into the pod it came from (hairpin) is plain routing.
//
// The gateways 169.254.1.1 and fe80::1 belong to no host. A permanent neighbour
// entry in the pod maps them to the host side's MAC address, so no host has to
// answer ARP or ND for them. proxy_arp, the usual other way, answers only when
// the node itself has a route for the gateway, which a node without a default
// route does not have, and it answers for all other addresses too. The node holds a
// permanent entry for the pod in turn: no neighbour traffic, no wait for
// duplicate address detection, no entry that ages out or overflows the table.
// Both MAC addresses are given by us, because udev replaces those that the
// kernel invents (MACAddressPolicy=persistent) and would falsify the entries.
//
// Promises: ADD leaves all or nothing; DEL succeeds when there is nothing left
// to delete; any number of plugins may run at once (host-local's file lock
// serialises addresses, the kernel everything else). The only files are those
// of host-local's store.
package cni
