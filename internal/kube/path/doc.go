// Package path reads the objects that decide about a packet's way, from the API server or from manifests, and converts them
// to the model of internal/path.
//
//	API server ─ Read ──┐
//	                    ├─→ Objects ─ Cluster ─→ path.Cluster
//	manifests ─ Parse ──┘
//
// Read lists each kind once. It needs a person's rights: Services, EndpointSlices, pods, nodes, namespaces and policies.
package path
