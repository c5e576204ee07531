// Package pki makes the certificates, keys and kubeconfigs of one cluster and
// keeps them as files in one directory.
//
//	ca ──┬── kube-apiserver (serving)      admin ─┐
//	     ├── kubelet-NODE   (serving)      kcm    ├─ client certificates,
//	     └── clients ─────────────────────  sched ─┤  each in a kubeconfig
//	service-account (RSA key pair)         NODE  ─┘
//
// It hides crypto/x509. It promises that private keys are readable by root
// alone, and that what it makes is valid for a year: a lab does not live
// longer, and "down" removes it all.
package pki
