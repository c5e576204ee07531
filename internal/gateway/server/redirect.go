package server

import (
	"net"
	"net/url"
	"strings"

	"github.com/fairway-net/fairway/internal/gateway"
)

// redirect returns the answer of a Redirect, or nil if the request is none of its.
func (x *exchange) redirect(f *gateway.Redirect) *reply {
	if f.OnlyHTTP && x.scheme() == "https" || f.OnlyPath != "" && f.OnlyPath != x.in.Path() {
		return nil
	}
	code := f.Code
	if code == 0 {
		code = 302
	}
	return &reply{code: code, reason: "redirect", headers: []gateway.Header{{Name: "Location", Value: x.location(f)}}}
}

// scheme is the client's scheme. A trusted proxy in front may have ended TLS.
func (x *exchange) scheme() string {
	if x.srv.trusts(x.peer) {
		switch v := x.header.Get("X-Forwarded-Proto"); v {
		case "http", "https":
			return v
		}
	}
	if x.tls {
		return "https"
	}
	return "http"
}

func (x *exchange) location(f *gateway.Redirect) string {
	if f.URL != "" {
		return clean(x.expand(f.URL))
	}
	scheme, host := x.scheme(), f.Host
	if host == "" {
		host = x.in.Host()
	}
	port := f.Port
	switch {
	case port != 0:
	case f.Scheme == "http":
		port = 80
	case f.Scheme == "https":
		port = 443
	case x.decision.Listener != nil:
		port = x.decision.Listener.Port
	}
	if f.Scheme != "" {
		scheme = f.Scheme
	}
	if port != 0 && !(scheme == "http" && port == 80 || scheme == "https" && port == 443) {
		if strings.HasPrefix(host, "[") {
			host += ":" + portText(port)
		} else {
			host = net.JoinHostPort(host, portText(port))
		}
	}
	var b strings.Builder
	b.WriteString(scheme)
	b.WriteString("://")
	b.WriteString(host)
	b.WriteString(x.changed(x.in.Path(), f.Path))
	if x.query != "" {
		b.WriteByte('?')
		b.WriteString(x.query)
	}
	return b.String()
}

// changed applies a PathChange.
func (x *exchange) changed(path string, c *gateway.PathChange) string {
	switch {
	case c == nil:
		return path
	case c.HasPrefix || c.Prefix != "":
		rest := strings.TrimPrefix(path[min(x.decision.Prefix, len(path)):], "/")
		prefix := "/" + strings.Trim(c.Prefix, "/")
		switch {
		case rest == "" && !strings.HasSuffix(path, "/"):
			return prefix
		case prefix == "/":
			return prefix + rest
		case rest == "" && x.decision.Prefix >= len(path): // the prefix itself ends with a slash
			return prefix
		}
		return prefix + "/" + rest
	case c.Full != "":
		if c.Full[0] != '/' {
			return "/" + c.Full
		}
		return c.Full
	}
	return path
}

// rewrite changes the host and the path for the endpoint. The new path gets the form of Normalise, like every path.
func (x *exchange) rewrite(f *gateway.Rewrite) *reply {
	x.keep()
	if f.Host != "" {
		x.host = f.Host
	}
	path, query := x.changed(x.path, f.Path), ""
	if f.Target != "" {
		path, query, _ = strings.Cut(x.expand(f.Target), "?")
	}
	if path == x.path && query == "" {
		return nil
	}
	if path == "" || path[0] != '/' {
		path = "/" + path
	}
	var ok bool
	if x.path, ok = gateway.Normalise(escape(path)); !ok {
		return x.refuse(400, "the rewritten path is not valid")
	}
	if query = clean(query); query != "" && x.query != "" {
		query += "&"
	}
	x.query = query + x.query
	return nil
}

// escape escapes the bytes that a path cannot have. A rule's text may have them.
func escape(path string) string {
	for i := range len(path) {
		if c := path[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`"<>\^{|}[]`+"`", c) >= 0 {
			return (&url.URL{Path: path}).EscapedPath()
		}
	}
	return path
}

// clean removes what would end a header line.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

// expand replaces $1 to $9 and some variables of nginx. It is no language: nothing else is replaced.
func (x *exchange) expand(s string) string {
	if strings.IndexByte(s, '$') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			i++
			continue
		}
		if c := s[i+1]; c >= '1' && c <= '9' {
			if n := int(c - '0'); n < len(x.decision.Captures) { // 0 is the whole path
				b.WriteString(x.decision.Captures[n])
			}
			i += 2
			continue
		}
		name := s[i+1:]
		n := 0
		for n < len(name) && (name[n] == '_' || 'a' <= name[n] && name[n] <= 'z') {
			n++
		}
		value, ok := x.variable(name[:n])
		if !ok {
			value = s[i : i+1+n]
		}
		b.WriteString(value)
		i += 1 + n
	}
	return b.String()
}

// variable is the value of a variable of nginx.
func (x *exchange) variable(name string) (string, bool) {
	switch name {
	case "host":
		return x.in.Host(), true
	case "http_host":
		return x.rawHost, true
	case "scheme":
		return x.scheme(), true
	case "uri":
		return x.in.Path(), true
	case "args", "query_string":
		return x.query, true
	case "request_uri":
		if x.query == "" {
			return x.in.Path(), true
		}
		return x.in.Path() + "?" + x.query, true
	case "remote_addr", "binary_remote_addr":
		return addrText(x.in.Client()), true
	}
	if h, ok := strings.CutPrefix(name, "http_"); ok {
		v, _ := x.in.Header(canonical(strings.ReplaceAll(h, "_", "-")))
		return v, true
	}
	if a, ok := strings.CutPrefix(name, "arg_"); ok {
		v, _ := x.in.Query(a)
		return v, true
	}
	if c, ok := strings.CutPrefix(name, "cookie_"); ok {
		v, _ := cookieOf(x.in, c)
		return v, true
	}
	return "", false
}
