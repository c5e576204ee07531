// Package edge is a balancer on a machine outside of the cluster: it takes connections to the
// addresses of Services of type LoadBalancer to nodes or pods.
//
//	Cluster ─ Services, nodes ─→ ┌────────┐ ─ names ─→ proxy loop ─ service.Compile ─→ datapath
//	                             │ Source │
//	nodes ←─ GET ─ Prober ─────→ └────────┘ ─ Instances: nodes as endpoints, by what they answered
//	         healthCheckNodePort, or /healthz of the proxy
//
// It hides when nodes are asked, and when they are believed. What becomes of a packet, package
// service decides; how, a datapath. It promises:
//   - Nothing is written into the kernel before each node has answered once or let its time pass:
//     a restart changes nothing for clients.
//   - A node is in and out by as many answers in a row as the configuration says.
//   - Checks are bounded: so many a second in all, whatever the number of Services and nodes; they
//     follow no redirect, read little of an answer, and each has a deadline.
//   - A mistake in the configuration is one line, with what to do.
package edge
