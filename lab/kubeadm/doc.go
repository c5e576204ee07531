// Package kubeadm runs phases of kubeadm against a cluster's API, with kubeadm's own functions. So the objects of a lab are
// those of a cluster that kubeadm made, and a change in kubeadm changes the lab.
//
//	Config ──→ Init: upload-config, addon/coredns, addon/kube-proxy ──→ the cluster
//	             Plan, Apply: what `kubeadm upgrade` does with DNS and kube-proxy  ─┘
package kubeadm
