// Package kube is the edge to the Kubernetes API server: the only package that
// knows client-go and the types of the Kubernetes API.
//
//	API server ─ list, watch ─→ transform ─→ Source ─ Take, Service, Slices ─→ proxy
//	    ↑                       (Convert*)     │      Dirty: "something changed"
//	    └── Recorder ←── service.Problem       └ Nodes, Node: zone, addresses, podCIDRs
//
// It hides informers, selectors, API versions and every way in which an object can
// be wrong. It promises:
//   - Nothing is handed over before the first list of every kind is in: a proxy
//     that programs half a cluster cuts off the other half.
//   - Slim: an object is cut to what the proxy needs before it is stored.
//   - Harmless: what cannot be read is left out and becomes a service.Problem, in
//     words for the object's owner; no object makes the program fail.
//   - Level, not edge: Take says which Services changed, the getters say how things
//     are now. Who misses a wake-up misses nothing.
package kube
