// Package names reads the objects whose names are known outside the cluster, for the packages below dns.
//
//	LoadBalancer Services, Ingresses, Gateways, routes ──> Objects ──> names.Cluster ──> `fairway dns --zone`, `fairway names sync`
//
// The package encapsulates annotations and the API's types. It promises:
//   - An object is cut to its names and addresses before it is stored.
//   - A kind that the API server does not have, or does not let us read, has no objects.
//   - Only a parent that accepts a route counts.
package names
