// Package testnet builds networks for tests from network namespaces: nodes and pods of a cluster, clients outside, and
// sockets in each of them.
//
//	pod 10.244.1.5 ─veth─ node-1 172.18.0.11 ─┐
//	pod 10.244.1.6 ─veth─┘                    ├─ fabric ─ outside 198.51.100.10
//	pod 10.244.2.5 ─veth─ node-2 172.18.0.12 ─┘  (bridge and router, no uplink)
//
// Pods are connected as by our CNI plugin: by a veth pair, one /32 (or /128) route to the pod, and a gateway in the pod
// that is no real address (169.254.1.1, fe80::1). On request a host has its own cgroup, like a pod (Cgroup).
//
// Promises:
//   - Nothing leaves: no namespace has a link to the host.
//   - Nothing stays: a namespace has no name and no process, only a file descriptor of the test. It is gone when the
//     test ends, also if the test is killed with -9.
//   - Usable at once: when New, Node and Pod return, links carry packets and addresses of both families can be bound.
//   - Parallel: networks of different tests are separate, and may use equal addresses.
//
// It needs root, and a kernel with network namespaces, veth and bridge. If the kernel lacks them, it fails the test,
// because a skipped test proves nothing. For an ordinary user it skips the test, and Main prints the number of skipped
// tests.
package testnet
