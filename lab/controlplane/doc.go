// Package controlplane runs etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, unchanged, in the calling process.
//
//	127.0.0.1:16443 (root namespace)
//	      │ inherited listener
//	┌─────┴──────────── one process, in its own network namespace ─┐
//	│  forward ──> kube-apiserver :6443 ──> etcd 127.0.0.1:2379     │
//	│                    ▲                                          │
//	│      controller-manager, scheduler                            │
//	└──────────────────────────────────────────────────────────────┘
//
// It hides the flags that make four programs written for machines of their
// own share one process. It promises that Run returns as soon as any of them
// has ended. etcd does not sync to disk: a lab's data does not outlive it.
package controlplane
