// Package pki makes the certificates, keys and kubeconfigs of one cluster, and keeps them as files in one directory.
//
//	ca ──┬── kube-apiserver (serving)      admin ─┐
//	     ├── kubelet-NODE   (serving)      kcm    ├─ client certificates,
//	     └── clients ─────────────────────  sched ─┤  each in a kubeconfig
//	service-account (EC key pair)          NODE  ─┘
//
// It promises that only root can read private keys. Certificates are valid for a year, because a lab does not live
// longer and "down" removes its files.
package pki
