// Package faults breaks what the agents live on, in a real cluster under load, and counts
// what clients notice: `make faults`, `make soak`. The figures are kept in
// docs/reliability.md.
//
//	client outside ── NodePort ──┐                        ┌─ pods that echo
//	pods, nodes ──── ClusterIP ──┴─ nodes (the agents) ───┘
//	                                   │ https
//	                               front (slow, 429, 401, empty lists) ── kube-apiserver (killed)
//
// The cluster is fairway-lab's, with real kubelets and the manifests of deploy/. The load
// is made of long-lived TCP connections, whose every answer is checked, and of new
// requests at a fixed rate over TCP and UDP. Both run in this process, on sockets in the
// namespaces of pods, nodes and the client outside.
//
// It promises to leave no lab behind; one that a killed run has left, the next run removes.
package faults
