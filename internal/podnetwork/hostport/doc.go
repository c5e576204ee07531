// Package hostport knows which ports of the node's own addresses lead to pods (hostPort). On loopback addresses it
// serves hostPorts and NodePorts.
//
//	container runtime ─ADD─▶ internal/podnetwork/cni ─▶ /run/fairway/cni/NODE/hostports/ ─inotify─▶ ┌────────┐
//	                               kernel: the node's addresses ─────────────rtnetlink─▶ │ Reader │ ─▶ service.HostPorts ─▶ proxy
//	                                                                                     └────────┘ ─▶ Loopback: 127.0.0.1 and ::1
//
// The CNI plugin's records decide: they have the runtime's port mappings of pods with a network. So the agent needs no
// right to read pods. A port works before the API server knows the pod, and also while the API server is away. It goes
// when the runtime ends the pod's network.
//
// The kernel forwards no packet with a loopback address to a pod. So the agent itself listens there, on the ports of
// pods or, if configured, of Services. Connections through it end with the agent.
//
// The package encapsulates files and addresses. It is level-triggered: Now returns the state after the last change. A
// record that cannot be read is logged once and left out; the others count.
package hostport
