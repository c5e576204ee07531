// Package fabric makes the network a lab's machines stand in: one bridge in a
// namespace of its own, a namespace for every node, one for the control plane
// and one for a client outside the cluster.
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
// With a machine in front (Plan.Front), a router or a load balancer, the client is behind that:
//
//	client ── .1 front .253 ── br0
//
// With two subnets of nodes (Plan.TwoSubnets) nodes with even numbers are on br1 192.168.50.1/24,
// fd00:50::1/64; the fabric routes between both, and knows nothing of pods.
//
// It hides network namespaces and netlink. It promises that no interface and
// no route of it is ever in the namespace of its caller, so that no packet for
// a lab address can leave from there; and that Delete removes all of it, also
// when no process that made it is alive, because a namespace is held by nothing but
// a bind mount below the lab's own directory and the processes in it.
package fabric
