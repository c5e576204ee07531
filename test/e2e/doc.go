// Package e2e runs Kubernetes' own end-to-end specs of the network, [sig-network], against a lab.
//
//	make test-e2e ─▶ fairway-lab up ─▶ e2e.test (k8s.io/kubernetes/test/e2e/network) ─▶ API server of the lab
//	                      ▲                                                             pods on its nodes
//	             agnhost.tar (made here)
//
// It is a module of its own, because the specs need five hundred packages that nothing else does. The specs are the
// upstream ones at the version of the lab's control plane; nothing of them is copied here. docs/conformance.md has the
// last result and why each skipped spec is skipped.
package e2e
