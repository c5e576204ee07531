// Package server serves a gateway.Table: it listens at the table's ports, applies the filters of a rule to each request,
// and forwards the request to an endpoint.
//
//	port ─ PROXY protocol ─ TLS ─┬─ HTTP/1.x ─ engine h1 (fasthttp's messages)  ─┐
//	                             ├─ HTTP/2   ─ engine h2 (net/http's server)    ─┼─ exchange: Lookup, filters, upstream
//	                             └─ TCP, UDP, TLS passthrough ─ relay            ─┘
//
// An engine reads requests and writes answers of one version of HTTP. All decisions are in exchange, which both engines
// share. So a request gets the same route, the same filters and the same refusal in either version.
//
// The package promises:
//   - One form: the path that the table matches is the path that the endpoint gets (gateway.Normalise).
//   - Strict: a request whose end is doubtful is refused with 400 before it is routed, and its connection ends.
//   - Bounded: heads, buffered bodies, idle connections, clients of limits and streams have limits.
//   - Live: Apply changes routes and endpoints between two requests. No connection ends because of it.
//   - Gentle: after Run's context ends, the server still accepts connections for a while, and answers what it accepted.
package server
