// Package probe sends a probe as a client would, and says what the client's socket heard.
//
//	pod's address ─→ route ─→ veth ─→ namespace ─→ socket: tag, connect or datagram ─→ trace.Heard
//
// The probe is a real connection attempt, because some balancers decide in connect(2) and some end the connection on the
// node. It sends no data to a TCP server, and closes the connection at once. To a UDP server it sends one datagram, or a
// DNS question.
//
// Promises:
//   - It needs nothing in the pod's image, and starts no process there.
//   - It ends at its deadline, and leaves no socket open.
//   - Whatever goes wrong is a Heard with an outcome and a reason.
//
// A pod's namespace needs CAP_SYS_ADMIN and sight of the node's processes. Without them the outcome is Failed.
package probe
