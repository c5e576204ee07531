// Package metrics serves the API metrics.k8s.io, which tells "kubectl top" and HorizontalPodAutoscalers the resource
// usage of nodes and containers. It has the role of metrics-server in other clusters.
//
//	kubectl top, HPA ──> kube-apiserver ── aggregation ──> Server ── every 15 s ──> each kubelet's /metrics/resource
//
// The package parses kubelets' counters and computes rates from two samples. It promises numbers that are at most two
// scrapes old, and no numbers for a container with only one sample. A node's usage is the whole machine's usage,
// because all nodes of a lab share the machine.
package metrics
