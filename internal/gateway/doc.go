// Package gateway decides what the objects of Gateway API and Ingress mean: the ports that a gateway listens on, the
// route of a request, and the status of each object. It is pure: it knows no socket and no API server.
//
//	GatewayClass, Gateway, ListenerSet ─┐                         ┌ Ports    listeners by the port of the process
//	HTTPRoute, GRPCRoute, TLSRoute,     │                         ├ Reports  conditions and event of each object
//	TCPRoute, UDPRoute                  ├─ Compiler.Table ─→ Table┤
//	ReferenceGrant, BackendTLSPolicy    │                         └ Needs    Secrets, ConfigMaps, Services to fetch
//	IngressClass, Ingress               │
//	Namespace, Service, Secret, CA      ┘
//
//	Table.Lookup(port, Request)  ─→ Decision: the rule for a request, and why
//	Table.Handshake(port, name)  ─→ the certificate, the clients' CAs, or a passthrough
//	Table.Explain(port, Request) ─→ each candidate with the reason that it lost
//
// An Ingress becomes the same rules as an HTTPRoute, on two listeners that belong to no Gateway. Annotations of
// ingress-nginx become fields of Filters, so an engine knows one set of filters.
//
// The package promises:
//   - Pure: no I/O, no clock, no goroutine. The same objects give the same Table, in any order of arrival.
//   - Cheap: a changed object recompiles the hosts that it names. A new Table shares the others with the last one.
//   - Harmless: an object that makes no sense loses only its own rules, and a Report says so.
//   - Closed: every reference to another namespace passes allowed, the only reader of ReferenceGrants.
//   - One form: a request is matched in the form in which it is forwarded (see Normalise).
//
// Only the standard library is imported.
package gateway
