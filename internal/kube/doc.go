// Package kube is the edge to the Kubernetes API server: the only package that
// knows client-go and the types of the Kubernetes API.
//
//	API server ─ list, watch ─→ trim ─→ Feed (one a kind) ─→ Subscription (one a consumer)
//	    ↑                      (Convert*)  Store owns them      gate, wake-up, dirty names
//	    ├── Recorder ←── service.Problem
//	    ├── StatusWriter ←── the status that an owner wants
//	    └── Elect: one leader at a time
//
// It hides informers, selectors, API versions and every way in which an object can
// be wrong. It promises:
//   - Many consumers: each has a Subscription of its own, and what one takes no other
//     misses. A kind is read from its first subscription on.
//   - A gate for each consumer: it gets nothing before the first lists of the kinds that
//     it needs are in (a proxy that programs half a cluster cuts off the other half), and
//     it does not wait for a list that it does not need. No list is one that users'
//     selectors ask for: the weights of pods come with EndpointSlices, by the controller. What is only optional is waited
//     for as long as the API server does not refuse it, but at most a few seconds from the
//     moment when the rest is in; then the consumer starts without it, the log names
//     the effect, and the list is used when it comes.
//   - Trimmed: an object is cut to what consumers need before it is stored.
//   - Harmless: what cannot be read is left out and becomes a service.Problem, in
//     words for the object's owner; no object makes the program fail.
//   - Level, not edge: Take returns the names that changed, the getters return how
//     things are now. A consumer that misses a wake-up misses nothing.
//
// What consumers need, and what they start without:
//
//	consumer      waits for                    optional
//	Services      services, endpointslices     nodes, servicecidrs
//	nodes         nodes
//	Announcements ipaddresspools, l2advertisements, bgpadvertisements, bgppeers,
//	              bfdprofiles, communities (all of metallb.io)
//	BGP           services, endpointslices, nodes, ipaddresspools, secrets
//	              bgpadvertisements, bgppeers, communities
//	Policies      networkpolicies, namespaces, pods
//
// To read another kind: declare it (a kind: resource, client, selectors, and the function
// that trims an object), open it in New, and give its consumer a Subscription that follows
// and needs it. TestAnotherKind is an example. Custom resources work the same way, with a
// dynamic client.
package kube
