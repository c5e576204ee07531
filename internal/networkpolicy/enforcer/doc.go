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
//   - Connections that lost their grant are ended, and no others.
package enforcer
