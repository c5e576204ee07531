// Package install puts Fairway on a cluster, changes it there, takes it back and removes it:
// what `fairway install`, `upgrade`, `rollback` and `uninstall` do.
//
//	cluster ──> Detect ──> Facts ─┐
//	flags, former settings ───────┴─> decide ──> Settings ──> render ──> objects   (or: refused, why)
//	deploy/ (kustomize) ──────────────────────────────────────┘            │
//	                                 ConfigMap fairway-inventory <── plan, apply, wait, prune
//	                                 kube-proxy, coredns         <── handed over, handed back
//
// It hides kustomize, where each kind of cluster keeps its facts, and the order in which the
// node proxies take over from each other. It promises that what it will do can be shown first
// (a dry run sends nothing that changes the cluster), that it remembers each object it made
// and each field of others it changed, before it does so, and that a run that was killed is
// finished by the next one.
package install
