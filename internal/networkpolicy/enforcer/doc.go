// Package enforcer keeps a node's kernel isolating pods as NetworkPolicies want it.
//
//	API server ─ Source ─→ ┌──────────┐ ─ Compile, Sync ─→ kernel
//	CNI plugin ─ socket ─→ │ Enforcer │ ─ what lost its grant ─→ conntrack, resets
//	user space ─ Allows ─→ └──────────┘
//
// It hides the loop and the socket. It promises:
//   - Closed at birth: the plugin's ADD is answered when the pod's isolation is in the kernel.
//     A pod whose labels are not known is isolated without grants until they are. Another
//     agent finds in the kernel which pod has which address.
//   - Level, not edge: changes that come while the kernel is written are the work of the next
//     pass; after an error the next one reads what the kernel holds.
//   - What is in the kernel stays when the process ends, however it ends.
//   - Connections that lost their grant are ended, and no others.
package enforcer
