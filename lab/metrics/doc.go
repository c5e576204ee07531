// Package metrics serves the API metrics.k8s.io, by which "kubectl top" and HorizontalPodAutoscalers see what nodes and
// containers use. It is what metrics-server does in other clusters.
//
//	kubectl top, HPA ──> kube-apiserver ── aggregation ──> Server ── every 15 s ──> each kubelet's /metrics/resource
//
// It hides how kubelets count and how a rate is made of two counts. It promises numbers that are at most two scrapes old, and
// none for what it has not seen twice. What a node uses is what the machine uses: all nodes of a lab share it.
package metrics
