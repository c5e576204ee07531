package server

import (
	"net/netip"
	"strings"

	"github.com/fairway-net/fairway/internal/gateway"
)

// filter applies filters to the request, in the order of gateway.Filters. A reply ends the exchange. rule is nil for the
// filters of a backend.
func (x *exchange) filter(f *gateway.Filters, rule *ruleState) *reply {
	if len(f.Allow) > 0 || len(f.Deny) > 0 {
		if client := x.in.Client(); contains(f.Deny, client) || len(f.Allow) > 0 && !contains(f.Allow, client) {
			return x.refuse(403, "the client's address is not allowed")
		}
	}
	if f.Redirect != nil {
		if r := x.redirect(f.Redirect); r != nil {
			return r
		}
	}
	if f.CORS != nil {
		if r := x.cors(f.CORS); r != nil {
			return r
		}
	}
	if f.Limits != nil && rule != nil {
		if r := x.take(rule.limits); r != nil {
			return r
		}
	}
	if f.BasicAuth != nil {
		if r := x.basicAuth(f.BasicAuth); r != nil {
			return r
		}
	}
	if f.ForwardAuth != nil {
		if r := x.forwardAuth(f.ForwardAuth); r != nil {
			return r
		}
	}
	if f.MaxBody > 0 && x.bodyLength > f.MaxBody {
		return x.refuse(413, "the body is too long")
	}
	if f.RequestHeaders != nil {
		x.changeRequest(f.RequestHeaders)
	}
	if f.Rewrite != nil {
		return x.rewrite(f.Rewrite)
	}
	return nil
}

func contains(all []netip.Prefix, a netip.Addr) bool {
	for _, p := range all {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// changeRequest changes the header. The host is not part of it.
func (x *exchange) changeRequest(c *gateway.HeaderChange) {
	x.keep()
	change(hostless{x}, c)
}

// keep copies the strings that may be parts of the header's memory, because the header changes now.
func (x *exchange) keep() {
	if r, ok := x.in.(*h1request); ok {
		r.own()
	}
	for i, c := range x.decision.Captures {
		x.decision.Captures[i] = strings.Clone(c)
	}
}

// hostless is the request's header, with Host as the host of the exchange.
type hostless struct{ x *exchange }

// Get implements header, as do the next methods.
func (h hostless) Get(name string) string { return h.x.header.Get(name) }

// Set implements header.
func (h hostless) Set(name, value string) {
	switch name {
	case "Host":
		h.x.host = value
	case "Content-Length", "Transfer-Encoding", "Connection": // the engine's
	default:
		h.x.header.Set(name, value)
	}
}

// Add implements header.
func (h hostless) Add(name, value string) {
	switch name {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection":
	case "User-Agent", "Content-Type", "Cookie": // there can be one line only
		if was := h.x.header.Get(name); was != "" {
			separator := ", "
			if name == "Cookie" {
				separator = "; "
			}
			value = was + separator + value
		}
		h.x.header.Set(name, value)
	default:
		h.x.header.Add(name, value)
	}
}

// Del implements header.
func (h hostless) Del(name string) {
	if name != "Host" && name != "Content-Length" && name != "Transfer-Encoding" {
		h.x.header.Del(name)
	}
}

// maxBody is the bound of the request's body; 0: none.
func (x *exchange) maxBody() int64 {
	a, b := x.decision.Rule.Filters.MaxBody, x.backend.Filters.MaxBody
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
