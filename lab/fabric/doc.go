// Package fabric makes the network between a lab's machines. It has one bridge in its own namespace. Every node, the
// control plane and a client outside the cluster have a namespace each.
//
//	client ── 198.51.100.0/24 ──┐
//	198.51.100.10               │ .1
//	                       ┌────┴─────┐
//	                       │  fabric  │ routes, has no uplink
//	                       └────┬─────┘
//	                            │ br0 192.168.49.1/24, fd00:49::1/64
//	  ┌───────────┬─────────────┼───────────────┐
//	node-1      node-2        node-3      control-plane
//	.2          .3            .4          .254
//
// With a machine in front (Plan.Front), a router or a load balancer, the client is behind that machine:
//
//	client ── .1 front .253 ── br0
//
// With two subnets of nodes (Plan.TwoSubnets), nodes with even numbers are on br1 192.168.50.1/24, fd00:50::1/64. The
// fabric routes between both subnets and has no routes to pods.
//
// The package handles network namespaces and netlink. It promises:
//   - The caller's namespace never gets an interface or a route of the fabric. No packet to a lab address can leave
//     through it.
//   - Delete removes the whole fabric, even if no process that made it is alive. Only a bind mount below the lab's own
//     directory and the processes in a namespace keep the namespace alive.
package fabric
