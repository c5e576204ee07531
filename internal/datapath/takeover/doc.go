// Package takeover moves a node from one carrier of Services to another, and connections
// continue.
//
//	           Sync, Check                       ┌─→ our datapath: carries first …
//	proxy.Loop ───────────→ Handover ────────────┤
//	                             │               └─ … then, again and again until done:
//	                             ├─→ the datapaths of other modes: Drain
//	                             └─→ KubeProxy: Find, Remove
//
// A Handover is a datapath around the one of our mode. It hides that another program, an
// agent in another mode or a kube-proxy, carried Services here before, and how that is
// read from the kernel. It promises that it touches nothing of them before our own rules
// are in place; that it never touches what is not ours and not kube-proxy's (the
// kubelet's chains, a container runtime's host ports, kube-router's); and that it goes by
// what it finds in the kernel, so that after an agent that was killed in between the next
// one continues.
//
// Established connections live on because conntrack remembers where each goes, and our
// own NAT rules keep the kernel's hooks for that in place. Where that is not enough
// (userspace), the datapath that leaves knows what its connections need: Drain removes it step
// by step.
package takeover
