// Package names decides which DNS names the objects of a cluster have outside the cluster. It is pure.
//
//	Services, Ingresses, routes, Gateways ──> Claims ──> Decide ──> Table ──> Resolve, Records (a zone transfer)
//
// The package encapsulates the rules of k8s_gateway, and the order in which objects of different tenants get a name. It
// promises:
//   - The oldest object keeps a name. Objects of the same namespace may share it. A younger object of another namespace
//     gets a Problem.
//   - A namespace has at most NamesPerNamespace names, and a name at most AddressesPerName addresses.
//   - A name without an address in the status of its object does not exist.
//   - Equal objects make an equal table, in whatever order they come.
package names
