// Package enforcer keeps a node's kernel isolating pods as the NetworkPolicies in the API server say.
//
//	API server ─ Source ─→ ┌──────────┐ ─ Compile, Sync ─→ kernel
//	CNI plugin ─ socket ─→ │ Enforcer │ ─ revoked grants ─→ conntrack, resets
//	user space ─ Allows ─→ └──────────┘
//
// The package encapsulates the loop and the plugin's socket. It promises:
//
//   - Closed at birth: the plugin's ADD is answered after the kernel isolates the pod. A pod with unknown labels
//     is isolated without grants. A new agent finds in the kernel which pod has which address.
//   - Level, not edge: changes that come during a pass are the work of the next pass. After an error the next pass
//     reads the kernel.
//   - The kernel's state stays when the process ends, however it ends.
//   - A table that another program changes is restored at once.
//   - A first table that opens most isolated pods, or lacks most of the node's pods, is held back for a while.
//   - Connections that lost their grant, or began while the table was damaged, are ended, and no others.
package enforcer
