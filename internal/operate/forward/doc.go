// Package forward serves a cluster's Services on this machine, at their names in the cluster: `fairway forward`.
//
//	API server ─ Services, slices ─→ Plan ─→ a listener for each port ←─ curl http://web.shop
//	     ↑                             └───→ hosts file: 127.80.3.9 web web.shop web.shop.svc.cluster.local
//	     └── port-forward to a pod ←── relay ←── a connection
//
// It promises:
//   - A Service has a loopback address of its own, which is the same at the next start, so Services may share a port.
//   - The endpoints are those that the service proxy would choose. A pod that has ended gets no new connection.
//   - A connection moves to another pod as long as no byte can have reached a program in the first one.
//   - Only marked lines of the hosts file change. They go at the end, and those of a process that was killed at the next
//     start.
//
// The API server carries TCP only. Ports of UDP and SCTP are named as not forwarded.
package forward
