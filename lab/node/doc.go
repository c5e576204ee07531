// Package node makes a namespace look like a machine, and runs the system's containerd and a real kubelet in it.
//
//	init (PID 1 of the node) ── sets up mounts, restarts programs that end, reaps
//	  ├── containerd ── shims ── pods
//	  └── kubelet ──CRI──> containerd
//	         └──images──> our image service ──> containerd
//
// The package handles mount namespaces, cgroups and the settings that let several nodes share one kernel. It promises:
//   - The paths in a manifest (/opt/cni/bin, /etc/cni/net.d, /var/lib/kubelet, /run …) lead to the node's own files.
//   - No node changes a file, a mount or a sysctl of the machine.
//   - When a node's init ends, the kernel ends all of the node's processes.
//
// containerd 1.6 does not know the CRI call RuntimeConfig. Kubelet 1.37 then uses cgroupDriver from its configuration,
// and kubelet 1.38 will not.
package node
