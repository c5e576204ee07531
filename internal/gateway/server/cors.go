package server

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// cors answers a preflight request, and remembers the origin of others for allowOrigin.
func (x *exchange) cors(f *gateway.CORS) *reply {
	origin, ok := x.in.Header("Origin")
	if !ok {
		return nil
	}
	allowed := slices.ContainsFunc(f.Origins, func(pattern string) bool { return matchOrigin(pattern, origin) })
	if allowed {
		x.origin = strings.Clone(origin)
	}
	method, preflight := x.in.Header("Access-Control-Request-Method")
	if x.in.Method() != "OPTIONS" || !preflight {
		return nil
	}
	r := &reply{code: 204, reason: "preflight"}
	if !allowed {
		return r
	}
	add := func(name, value string) {
		if value != "" {
			r.headers = append(r.headers, gateway.Header{Name: name, Value: value})
		}
	}
	asked, _ := x.in.Header("Access-Control-Request-Headers")
	add("Access-Control-Allow-Methods", listOrAsked(f.Methods, method, f.Credentials))
	add("Access-Control-Allow-Headers", listOrAsked(f.Headers, asked, f.Credentials))
	age := f.MaxAge
	if age == 0 {
		age = 5 * time.Second
	}
	add("Access-Control-Max-Age", strconv.Itoa(int(age/time.Second)))
	return r
}

// listOrAsked returns the allowed values. With credentials "*" has no meaning to browsers, so what was asked is allowed.
func listOrAsked(all []string, asked string, credentials bool) string {
	if slices.Contains(all, "*") {
		if credentials {
			return strings.Clone(asked)
		}
		return "*"
	}
	return strings.Join(all, ", ")
}

// matchOrigin compares an origin with a pattern: "*", an exact one, or one with a "*" inside.
func matchOrigin(pattern, origin string) bool {
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return strings.EqualFold(pattern, origin)
	}
	return len(origin) >= len(before)+len(after) && strings.EqualFold(origin[:len(before)], before) && strings.EqualFold(origin[len(origin)-len(after):], after)
}

// allowOrigin marks an answer for the request's origin.
func (x *exchange) allowOrigin(h header) {
	f := x.decision.Rule.Filters.CORS
	if f == nil && x.backend != nil {
		f = x.backend.Filters.CORS
	}
	if f == nil {
		return
	}
	if slices.Contains(f.Origins, "*") && !f.Credentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", x.origin)
		h.Add("Vary", "Origin")
	}
	if f.Credentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if len(f.Expose) > 0 {
		h.Set("Access-Control-Expose-Headers", strings.Join(f.Expose, ", "))
	}
}
