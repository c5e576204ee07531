// Package ingress leads from ingress-nginx to Gateway API.
//
//	Ingresses, Services ─ Migrate ─→ Gateway, ListenerSets, HTTPRoutes, TLSRoutes, RoutePolicies, BackendTLSPolicies
//	                                 and a Note for each thing that has no equivalent, or differs
//	Ingresses ─ Requests ─→ boundary requests ─ Compare(old address, new address) ─→ each difference
//
// A cluster's Ingresses share one Gateway, as they shared the controller's address. Each namespace with TLS gets a
// ListenerSet, so that its Secrets stay where they are. An Ingress becomes one HTTPRoute for each host.
//
// The annotations of ingress-nginx are read by internal/gateway, their only reader: Migrate writes what a gateway serves.
//
// The package promises:
//   - No annotation of ingress-nginx is dropped in silence. Each one is translated, or a Note names it.
//   - A route that lacks something that keeps requests out answers 500.
//   - No annotation's text becomes part of another language. Snippets are refused.
//   - The same Ingresses give the same text, in any order.
package ingress
