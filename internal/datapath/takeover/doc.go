// Package takeover moves a node's Services from one proxy or mode to another, while connections continue.
//
//	           Sync, Check                       ┌─→ our datapath carries the Services first …
//	proxy.Loop ───────────→ Handover ────────────┤
//	                             │               └─ … then, again and again until done:
//	                             ├─→ the datapaths of other modes: Drain
//	                             └─→ KubeProxy: Find, Remove
//
// A Handover is a datapath around the datapath of our mode. A Release does the opposite: it gives the node back to another
// proxy. Both find in the kernel what kube-proxy, or an agent in another mode, has left.
//
// Promises of a Handover:
//   - It removes nothing before our own rules are in place.
//   - It removes only rules of Fairway and of kube-proxy, never those of the kubelet, a container runtime or kube-router.
//   - It keeps no record of its own. If an agent is killed, the next agent finds the rest in the kernel, and continues.
//
// Established connections continue, because conntrack remembers their endpoints, and our own NAT rules keep the
// kernel's NAT hooks registered. Connections of mode userspace need more: Drain of that datapath removes it step by step.
package takeover
