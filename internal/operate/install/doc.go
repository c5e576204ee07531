// Package install puts Fairway on a cluster, changes it there, goes back and removes it: the commands install, upgrade,
// rollback and uninstall.
//
//	cluster ──> Detect ──> Facts ─┐
//	flags, former settings ───────┴─> decide ──> Settings ──> render ──> objects   (or: refused, why)
//	deploy/ (kustomize) ──────────────────────────────────────┘            │
//	                                 ConfigMap fairway-inventory <── plan, apply, wait, prune
//	                                 kube-proxy, coredns         <── handed over, handed back
//
// Its promises:
//   - A dry run shows every change and sends none.
//   - The inventory records each object and each field of others before the package changes it.
//   - The next run finishes a run that was killed.
package install
