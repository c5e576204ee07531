// Package edge is a balancer on a machine outside of the cluster: it takes connections to the
// addresses of Services of type LoadBalancer to nodes or pods.
//
//	Cluster ─ Services, nodes ─→ ┌────────┐ ─ names ─→ proxy loop ─ service.Compile ─→ datapath
//	                             │ Source │
//	nodes ←─ GET ─ Prober ─────→ └────────┘ ─ Instances: nodes as endpoints, by what they answered
//	         healthCheckNodePort, or /healthz of the proxy
//
// The package encapsulates the health checks of nodes. Package service decides the way of a packet, and a datapath carries
// it out.
//
// Promises:
//   - The kernel gets no table before each node has answered once or missed a deadline, so a restart changes nothing for
//     clients.
//   - A node changes its state after the configured number of equal answers in a row.
//   - Checks are bounded: their number a second is limited for all Services and nodes together, they follow no redirect,
//     they read only the header of an answer, and each has a deadline.
//   - A mistake in the configuration causes one line with advice.
package edge
