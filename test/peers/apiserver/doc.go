// Package apiserver is a Kubernetes API server small enough to live in a test: list and
// watch of what a service proxy reads, over real HTTP, from objects that the test puts.
//
//	Put, Delete ─→ objects + log of changes ─┬─ list, watch (JSON, protobuf) ─→ kube-proxy
//	                                         └───────────────────────────────→ fairway agent
//
// It hides encodings, resource versions and selectors. It promises what both programs
// rely on: versions that grow, watches that miss nothing and keep the order, initial
// events with their bookmark (KEP-3157), and DELETED for an object that no longer
// matches a watcher's selector. Each object is encoded once a format, however many
// watch. It validates nothing, defaults nothing, and takes events without keeping them.
package apiserver
