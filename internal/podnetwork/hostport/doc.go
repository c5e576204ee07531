// Package hostport knows which ports of the node's own addresses lead to pods (hostPort), and serves
// them, and NodePorts, on loopback addresses.
//
//	container runtime ─ADD─▶ internal/podnetwork/cni ─▶ /run/fairway/cni/NODE/hostports/ ─inotify─▶ ┌────────┐
//	                               kernel: the node's addresses ─────────────rtnetlink─▶ │ Reader │ ─▶ service.HostPorts ─▶ proxy
//	                                                                                     └────────┘ ─▶ Loopback: 127.0.0.1 and ::1
//
// The records of the CNI plugin are the truth: what the runtime asked for, for pods whose
// network is there. So the agent needs no right to read pods, the port works before the API
// server hears of it, and also while it is away; and a port goes at the moment in which the
// runtime ends the pod's network.
//
// The kernel sends no packet with a loopback address on to a pod, so that the agent itself
// listens there, on the ports that pods or (NodePorts, if asked) Services have, and no others. Those
// connections end with it.
//
// It hides files and addresses. It promises: level-triggered, Now is what was there after the
// last change; what cannot be read is logged once and left out, and the rest counts.
package hostport
