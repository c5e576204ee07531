// Package controlplane runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler, unchanged, in the calling
// process.
//
//	127.0.0.1:16443 (root namespace)
//	      │ inherited listener
//	┌─────┴──────────── one process, in its own network namespace ─┐
//	│  forward ──> kube-apiserver :6443 ──> etcd 127.0.0.1:2379     │
//	│                    ▲                                          │
//	│      controller-manager, scheduler                            │
//	└──────────────────────────────────────────────────────────────┘
//
// The package sets the flags that let four programs share one process. It promises that Run returns as soon as any of
// the programs ends. etcd does not sync to disk, because a lab's data need not survive the lab.
package controlplane
