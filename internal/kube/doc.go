// Package kube is the edge to the Kubernetes API server. Only this package and the packages below it know client-go and
// the types of the Kubernetes API.
//
//	API server ─ list, watch ─→ trim ─→ Feed (one a kind) ─→ Subscription (one a consumer)
//	    ↑                      (Convert*)  Store owns them      gate, wake-up, dirty names
//	    ├── Recorder ←── service.Problem
//	    ├── StatusWriter ←── the wanted statuses of an owner
//	    └── Elect: one leader at a time
//
// The package encapsulates informers, selectors, API versions and invalid objects. It promises:
//   - Many consumers: each consumer has its own Subscription, which misses no change. A kind is read from its first
//     subscription on.
//   - A gate for each consumer: the consumer gets nothing before the first lists of its required kinds are complete. A
//     proxy that programs half a cluster would cut off the other half. The gate does not wait for other kinds.
//   - Optional kinds: the gate waits for them until the API server refuses them, at most a few seconds after the required
//     lists. The consumer then starts without them, the log names the effect, and a late list is used when it comes.
//   - Trimmed: an object is cut to the parts that consumers need before it is stored.
//   - Checked: a kubelet writes its Node and the statuses of its pods. Claims decides which addresses and podCIDRs count.
//   - Harmless: an invalid part is left out and becomes an api.Problem, in words for the object's owner. No object makes
//     the program fail.
//   - Level, not edge: Take returns the names that changed, and the getters return the current objects. A consumer that
//     misses a wake-up misses no change.
//
// The kinds of each consumer:
//
//	consumer      waits for                       optional
//	Services      services, endpointslices        nodes, servicecidrs
//	nodes         nodes                           servicecidrs
//	Edge          services, nodes                 (endpointslices are required if it sends to pods)
//	Egress        services, nodes, pods           servicecidrs
//	Policies      networkpolicies, namespaces, pods, clusternetworkpolicies (package networkpolicy),
//	              with our pod network nodes      servicecidrs
//
// Package loadbalancer has a table for its own consumers.
//
// To read another kind, declare a kind (resource, client, selectors, and the function that trims an object). Open it, and
// give its consumer a Subscription that follows and needs it. TestAnotherKind is an example. Custom resources work in the
// same way, with a dynamic client.
package kube
