package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// An Ask is a Request that a person writes.
type Ask struct {
	Verb   string
	URL    *url.URL
	Name   string // of the TLS handshake; empty without TLS
	Peer   netip.Addr
	Fields map[string]string // headers by canonical name
	path   string
	query  url.Values
}

// ParseAsk reads "GET https://shop.example/cart", or a URL alone, and headers as "Name: value".
func ParseAsk(request string, headers []string) (*Ask, error) {
	verb, address, two := strings.Cut(strings.TrimSpace(request), " ")
	if !two {
		verb, address = "GET", verb
	}
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("%q is no request [write 'GET https://shop.example/cart']", request)
	}
	a := &Ask{Verb: strings.ToUpper(verb), URL: u, Peer: netip.IPv6Unspecified(), Fields: map[string]string{}, query: u.Query()}
	var ok bool
	if a.path, ok = Normalise(cmp.Or(u.EscapedPath(), "/")); !ok {
		return nil, fmt.Errorf("a gateway refuses the path %s with 400, before it asks for a route", u.EscapedPath())
	}
	if u.Scheme == "https" {
		a.Name = a.Host()
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return nil, fmt.Errorf("%q is no header [write 'Name: value']", h)
		}
		a.Fields[canonicalName(name)] = strings.TrimSpace(value)
	}
	return a, nil
}

// Port is the port of the URL.
func (a *Ask) Port() uint16 {
	if n, err := strconv.ParseUint(a.URL.Port(), 10, 16); err == nil {
		return uint16(n)
	}
	if a.URL.Scheme == "https" {
		return 443
	}
	return 80
}

// TLS reports whether the request comes over TLS.
func (a *Ask) TLS() bool { return a.URL.Scheme == "https" }

// The methods of a Request.

func (a *Ask) Method() string     { return a.Verb }
func (a *Ask) Host() string       { return lower(a.URL.Hostname()) }
func (a *Ask) Path() string       { return a.path }
func (a *Ask) ServerName() string { return a.Name }
func (a *Ask) Client() netip.Addr { return a.Peer }
func (a *Ask) Header(name string) (string, bool) {
	v, ok := a.Fields[name]
	return v, ok
}
func (a *Ask) Query(name string) (string, bool) { return a.query.Get(name), a.query.Has(name) }
