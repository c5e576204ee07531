// Package testnet builds networks for tests out of network namespaces, as values:
// a cluster's nodes, pods and outside clients, and sockets in each of them.
//
//	pod 10.244.1.5 ─veth─ node-1 172.18.0.11 ─┐
//	pod 10.244.1.6 ─veth─┘                    ├─ fabric ─ outside 198.51.100.10
//	pod 10.244.2.5 ─veth─ node-2 172.18.0.12 ─┘  (bridge and router, no uplink)
//
// It hides namespaces, threads, netlink and the time that the kernel takes until a
// new link carries packets. Pods hang on their node as our CNI plugin hangs them: a
// veth pair, one /32 (or /128) route to the pod, and a gateway in the pod that is
// no real address (169.254.1.1, fe80::1).
//
// A host that asks for it has a cgroup of its own (Cgroup), as a pod has.
//
// It promises:
//   - Nothing leaves: no namespace has a link to the host.
//   - Nothing stays: a namespace has no name and no process in it, only a file
//     descriptor of the test. It is gone when the test ends, and also when the
//     test is killed with -9.
//   - Usable at once: New, Node and Pod return when links carry packets and
//     addresses of both families may be bound.
//   - Parallel: networks of different tests are separate, and all of
//     them may use the same addresses.
//
// It needs root and a Linux kernel with network namespaces, veth and bridge. It fails
// the test with one line if the kernel lacks them, for a test that is not run proves
// nothing. For an ordinary user it skips the test, and Main prints what was left out.
package testnet
