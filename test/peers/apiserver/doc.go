// Package apiserver is a Kubernetes API server that is small enough for a test. It serves list and watch of the objects that a
// service proxy reads, over real HTTP. The test puts the objects.
//
//	Put, Delete ─→ objects + log of changes ─┬─ list, watch (JSON, protobuf) ─→ kube-proxy
//	                                         └───────────────────────────────→ fairway agent
//
// Promises, which both programs rely on:
//   - Resource versions grow.
//   - Watches miss no change, and keep the order.
//   - Initial events end with a bookmark (KEP-3157).
//   - A watcher gets DELETED for an object that no longer matches its selector.
//   - Each object is encoded once for each format, however many watchers there are.
//
// It does not validate objects or add defaults, and it accepts events without keeping them.
package apiserver
