// Package hostport knows which ports of the node's own addresses lead to pods (hostPort).
//
//	container runtime ─ADD─▶ internal/cni ─▶ /run/fairway/cni/NODE/hostports/ ─inotify─▶ ┌────────┐
//	                               kernel: the node's addresses ─────────────rtnetlink─▶ │ Reader │ ─▶ service.HostPorts ─▶ proxy
//	                                                                                     └────────┘
//
// The records of the CNI plugin are the truth: what the runtime asked for, for pods whose
// network is there. So the agent needs no right to read pods, the port works before the API
// server hears of it, and also while it is away; and a port goes at the moment in which the
// runtime ends the pod's network.
//
// It hides files and addresses. It promises: level-triggered, Now is what was there after the
// last change; what cannot be read is logged once and left out, and the rest counts.
package hostport
