// Package egress decides which pods leave the cluster with which load-balancer address, and by which node.
//
//	Services with fairway.net/egress ─┐
//	pods ─────────────────────────────┼─ Compile ─→ Table: address of a pod → Choice, with the reason
//	announced addresses, by node ─────┘
//
// The package encapsulates the order of Services. It promises:
//
//   - A Service counts only for pods of its own namespace, with an address in its status.
//   - If no node announces a pod's egress address, the pod leaves with no address, not with another one.
//   - The same objects give the same Table, in any order.
package egress
