package server

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A header is the header of a request or an answer, as an engine holds it. Names are canonical.
type header interface {
	Get(name string) string
	Set(name, value string)
	Add(name, value string)
	Del(name string)
}

// A reply is an answer of the gateway itself.
type reply struct {
	code    int
	headers []gateway.Header
	body    string
	reason  string // for the access log
}

// An exchange is one request on its way to an endpoint and back. An engine fills the first group, calls begin, choose and
// endpoint, and forwards the request with target and header. It then calls answered for the endpoint's answer, or sends
// a reply, and calls end.
type exchange struct {
	srv        *Server
	in         gateway.Request // the request as it arrived
	header     header          // of the request to the endpoint
	port       uint16
	tls        bool
	peer       netip.Addr // the other end of the connection
	rawHost    string     // as it arrived, with its port
	query      string     // without "?"
	bodyLength int64      // -1: not known
	started    time.Time

	decision gateway.Decision
	rule     *ruleState
	backend  *backendState
	// The request to the endpoint.
	host, path string
	session    string // the cookie that the answer sets; empty: none
	origin     string // of CORS; empty: the request is not cross-origin, or not allowed
	release    func() // gives back the place that limits took; nil: none
	reason     string
	answered   bool
	endpoint   *endpoint
	tried      []*endpoint
	body       *onceBody        // of net/http's attempts
	authorized []gateway.Header // of the forward authentication's answer, for the client
}

// begin decides about a request. A reply ends the exchange; nil: the request goes on to choose.
func (x *exchange) begin() *reply {
	table := x.srv.state.Load().table
	if table == nil {
		return &reply{code: 404, reason: "no routes"}
	}
	x.decision = table.Lookup(x.port, x.in)
	switch x.decision.Outcome {
	case gateway.NoListener:
		return x.refuse(404, "no listener")
	case gateway.NoRoute:
		return x.refuse(404, "no route")
	case gateway.Misdirected:
		return x.refuse(421, "the connection is for another host")
	}
	x.rule = x.srv.ruleOf(x.decision.Rule, x.started)
	x.host, x.path = x.rawHost, x.in.Path()
	return x.filter(&x.decision.Rule.Filters, x.rule)
}

// choose selects the backend by weight and applies its filters.
func (x *exchange) choose() *reply {
	b := x.rule.choose()
	if b == nil {
		return x.refuse(500, "no backend")
	}
	x.backend = b
	if b.Refused != "" {
		return x.refuse(500, "backend refused")
	}
	if r := x.filter(&b.Filters, nil); r != nil {
		return r
	}
	x.forwarded()
	return nil
}

// refuse returns an error answer, as a gRPC status for gRPC.
func (x *exchange) refuse(code int, reason string) *reply {
	r := &reply{code: code, reason: reason}
	if x.decision.Rule != nil && x.decision.Rule.GRPC || isGRPC(x.in) {
		return grpcReply(r)
	}
	return r
}

func isGRPC(in gateway.Request) bool {
	t, _ := in.Header("Content-Type")
	return t == "application/grpc" || strings.HasPrefix(t, "application/grpc+") || strings.HasPrefix(t, "application/grpc;")
}

// grpcReply returns a reply as a gRPC status: https://grpc.github.io/grpc/core/md_doc_http-grpc-status-mapping.html.
func grpcReply(r *reply) *reply {
	status := "2" // UNKNOWN
	switch r.code {
	case 400, 500:
		status = "13" // INTERNAL
	case 401:
		status = "16" // UNAUTHENTICATED
	case 403:
		status = "7" // PERMISSION_DENIED
	case 404, 421:
		status = "12" // UNIMPLEMENTED
	case 413:
		status = "8" // RESOURCE_EXHAUSTED
	case 429, 502, 503:
		status = "14" // UNAVAILABLE
	case 504:
		status = "4" // DEADLINE_EXCEEDED
	}
	return &reply{code: 200, reason: r.reason, headers: append([]gateway.Header{
		{Name: "Content-Type", Value: "application/grpc"}, {Name: "Grpc-Status", Value: status}, {Name: "Grpc-Message", Value: r.reason},
	}, r.headers...)}
}

// forwarded sets the headers that tell the backend about the client.
func (x *exchange) forwarded() {
	proto, port := "http", "80"
	if x.tls {
		proto, port = "https", "443"
	}
	if l := x.decision.Listener; l != nil && l.Port != 80 && l.Port != 443 {
		port = portText(l.Port)
	}
	client := addrText(x.in.Client())
	from := client
	if x.srv.trusts(x.peer) {
		if was := x.header.Get("X-Forwarded-For"); was != "" {
			from = was + ", " + addrText(x.peer)
		}
		if was := x.header.Get("X-Forwarded-Proto"); was != "" {
			proto = was
		}
		if was := x.header.Get("X-Forwarded-Port"); was != "" {
			port = was
		}
		if was := x.header.Get("X-Forwarded-Host"); was == "" {
			x.header.Set("X-Forwarded-Host", x.rawHost)
		}
	} else {
		x.header.Set("X-Forwarded-Host", x.rawHost)
	}
	x.header.Set("X-Forwarded-For", from)
	x.header.Set("X-Forwarded-Proto", proto)
	x.header.Set("X-Forwarded-Port", port)
	x.header.Set("X-Real-Ip", client)
}

// clientOf returns the client of a request: the peer, or for a trusted peer the last address of X-Forwarded-For that is no
// trusted proxy.
func (s *Server) clientOf(c netip.Addr, peer netip.Addr, forwardedFor string) netip.Addr {
	if forwardedFor == "" || !s.trusts(peer) {
		return c
	}
	for forwardedFor != "" {
		last := forwardedFor
		if i := strings.LastIndexByte(forwardedFor, ','); i >= 0 {
			last, forwardedFor = forwardedFor[i+1:], forwardedFor[:i]
		} else {
			forwardedFor = ""
		}
		a, err := netip.ParseAddr(strings.TrimSpace(last))
		if err != nil {
			return c
		}
		if c = a.Unmap().WithZone(""); !s.trusts(c) {
			return c
		}
	}
	return c
}

// change applies a HeaderChange.
func change(h header, c *gateway.HeaderChange) {
	if c == nil {
		return
	}
	for i := range c.Set {
		h.Set(c.Set[i].Name, c.Set[i].Value)
	}
	for i := range c.Add {
		h.Add(c.Add[i].Name, c.Add[i].Value)
	}
	for _, name := range c.Remove {
		h.Del(name)
	}
}

// respond applies the filters to the endpoint's answer.
func (x *exchange) respond(h header) {
	x.answered = true
	x.mark(h)
	if x.backend != nil {
		change(h, x.backend.Filters.ResponseHeaders)
	}
	change(h, x.decision.Rule.Filters.ResponseHeaders)
}

// mark adds the headers that the gateway itself owes the client: CORS, the session's cookie.
func (x *exchange) mark(h header) {
	if x.origin != "" {
		x.allowOrigin(h)
	}
	if x.session != "" {
		x.setSession(h)
	}
	for _, a := range x.authorized {
		h.Add(a.Name, a.Value)
	}
}

// end counts and logs the exchange.
func (x *exchange) end(code int, bytes int64) {
	if x.release != nil {
		x.release()
	}
	x.srv.observe(x, code, bytes)
}

// reset prepares x for the next request of a connection.
func (x *exchange) reset() {
	srv, in, h := x.srv, x.in, x.header
	tried := x.tried[:0]
	*x = exchange{srv: srv, in: in, header: h, tried: tried}
}

// weighted returns a random number below n.
func weighted(n uint64) uint64 { return rand.Uint64N(n) }
