// Package egress decides which pods leave the cluster with which load-balancer address, and by
// which node.
//
//	Services with fairway.net/egress ─┐
//	pods ─────────────────────────────┼─ Compile ─→ Table: address of a pod → Choice, with the reason
//	who announces the addresses ──────┘
//
// It hides who comes before whom. It promises: what a Service says counts for pods of its own
// namespace alone, with an address that its status has; a pod that is to have an address which nobody
// announces has none, and not another one; the same objects give the same Table, in any order.
package egress
