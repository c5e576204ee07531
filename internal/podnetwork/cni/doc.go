// Package cni is the CNI plugin that wires a pod to its node: one veth pair, addresses from the node's podCIDRs,
// routes, and nothing else. It encapsulates links, neighbours, sysctls and the address store. It implements the verbs
// of the CNI specification 1.1 (ADD, DEL, CHECK, GC, STATUS, VERSION), for configurations of versions 0.3.1 to 1.1.0.
//
//	pod's namespace                         node's namespace
//	eth0  10.244.1.5/32  fd00::5/128 ===== fw3f9a1c22b04e   (no address)
//	default via 169.254.1.1, fe80::1        10.244.1.5/32 dev fw3f9a1c22b04e
//
// There is no bridge. The node routes between its pods, so every packet passes the node's netfilter hooks, where the
// Service proxy works. A packet back into its own pod (hairpin) is plain routing too.
//
// The gateways 169.254.1.1 and fe80::1 belong to no host. A permanent neighbour entry in the pod maps them to the host
// side's MAC address, so no host has to answer ARP or ND for them. The usual alternative, proxy_arp, answers only if
// the node itself has a route for the gateway, and a node without a default route has none. It also answers for all
// other addresses. The node holds a permanent entry for the pod in turn. So there is no neighbour traffic, no wait for
// duplicate address detection, and no entry that ages out or overflows the table. The plugin sets both MAC addresses,
// because udev replaces addresses that the kernel invents (MACAddressPolicy=persistent) and would falsify the entries.
//
// Promises:
//
//   - ADD leaves everything or nothing.
//   - DEL succeeds if there is nothing to delete.
//   - Any number of plugins may run at once. host-local's file lock serialises addresses, the kernel everything
//     else.
//   - The only files are host-local's store and the records of host ports.
package cni
