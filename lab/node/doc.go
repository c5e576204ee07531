// Package node makes a namespace look like a machine of its own to the
// system's containerd and to a real kubelet, and runs both in it.
//
//	init (PID 1 of the node) ── sets up mounts, restarts what ends, reaps
//	  ├── containerd ── shims ── pods
//	  └── kubelet ──CRI──> containerd
//	         └──images──> our image service ──> containerd
//
// It hides mount namespaces, cgroups and the settings that let three nodes
// share one kernel. It promises that the paths in a manifest (/opt/cni/bin,
// /etc/cni/net.d, /var/lib/kubelet, /run …) mean the node's own files, that
// no node changes a file, a mount or a sysctl of the machine below it, and
// that the kernel ends all of a node when its init ends.
//
// containerd 1.6 does not know the CRI call RuntimeConfig. kubelet 1.37 falls
// back to cgroupDriver of its configuration then; 1.38 will not.
package node
