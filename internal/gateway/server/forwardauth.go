package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// Bounds of an authentication server's answer.
const (
	authTimeout = 10 * time.Second
	maxAuthHead = 32 << 10
	maxAuthBody = 64 << 10
)

var errAddress = errors.New("the address is the node's own")

// newAuthClient returns the client of authentication servers. Their addresses come from tenants, so they must not reach what
// listens for the node itself, or its metadata server.
func (s *Server) newAuthClient() *http.Client {
	d := &net.Dialer{Timeout: s.ConnectTimeout}
	if !s.AllowLoopback {
		d.Control = func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if a := at.Addr().Unmap(); a.IsLoopback() || a.IsUnspecified() || a.IsLinkLocalUnicast() || a.IsMulticast() {
				return fmt.Errorf("%v: %w [an authentication server has to be a Service or another host]", a, errAddress)
			}
			return nil
		}
	}
	return &http.Client{
		Timeout: authTimeout,
		Transport: &http.Transport{
			DialContext: d.DialContext, DisableCompression: true, MaxIdleConnsPerHost: 32, IdleConnTimeout: idleUpstream,
			MaxResponseHeaderBytes: maxAuthHead, TLSHandshakeTimeout: s.ConnectTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// forwardAuth asks another server whether the request may pass. Without a clear yes it does not.
func (x *exchange) forwardAuth(f *gateway.ForwardAuth) *reply {
	resp, err := x.askAuth(f)
	if err != nil {
		x.srv.Log.Warn("an authentication server does not answer, and its requests are refused [see the rule's auth-url]", "route", x.decision.Rule.Route.Name, "error", err)
		return x.refuse(500, "the authentication server does not answer")
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAuthBody+1))
	if err != nil || len(body) > maxAuthBody {
		return x.refuse(500, "the authentication server's answer cannot be read")
	}
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		x.keep()
		for _, name := range f.Headers {
			x.header.Del(name) // the client must not choose its value
			if v := resp.Header.Values(name); len(v) > 0 {
				x.header.Set(canonical(name), strings.Join(v, ", "))
			}
		}
		for _, c := range resp.Header.Values("Set-Cookie") {
			x.authorized = append(x.authorized, gateway.Header{Name: "Set-Cookie", Value: c})
		}
		return nil
	case resp.StatusCode == 401 && f.SignIn != "":
		return &reply{code: 302, reason: "sign in", headers: []gateway.Header{{Name: "Location", Value: x.signIn(f.SignIn)}}}
	case resp.StatusCode == 401 || resp.StatusCode == 403:
		r := x.refuse(resp.StatusCode, "refused by the authentication server")
		if v := resp.Header.Get("Www-Authenticate"); v != "" {
			r.headers = append(r.headers, gateway.Header{Name: "Www-Authenticate", Value: v})
		}
		for _, c := range resp.Header.Values("Set-Cookie") {
			r.headers = append(r.headers, gateway.Header{Name: "Set-Cookie", Value: c})
		}
		return r
	}
	return x.refuse(500, "the authentication server answers neither yes nor no")
}

// askAuth sends the question: the request's header without its body.
func (x *exchange) askAuth(f *gateway.ForwardAuth) (*http.Response, error) {
	method := f.Method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequest(method, x.expand(f.URL), nil)
	if err != nil {
		return nil, err
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" {
		return nil, fmt.Errorf("%q is no address of HTTP", f.URL)
	}
	copyHeader(req.Header, x.in)
	uri, _ := x.variable("request_uri")
	for name, value := range map[string]string{
		"X-Original-Url": x.scheme() + "://" + x.rawHost + uri, "X-Original-Method": x.in.Method(),
		"X-Forwarded-Method": x.in.Method(), "X-Forwarded-Proto": x.scheme(), "X-Forwarded-Host": x.rawHost,
		"X-Forwarded-Uri": uri, "X-Forwarded-For": addrText(x.in.Client()), "X-Real-Ip": addrText(x.in.Client()),
		"X-Auth-Request-Redirect": uri,
	} {
		req.Header.Set(name, strings.Clone(value))
	}
	return x.srv.authClient.Do(req)
}

// copyHeader copies a request's header without what is about its body.
func copyHeader(to http.Header, in gateway.Request) {
	switch r := in.(type) {
	case *h1request:
		for key, value := range r.req.All() {
			to.Add(string(key), string(value))
		}
	case *h2request:
		for name, values := range r.req.Header {
			to[name] = append([]string(nil), values...)
		}
	}
	for _, name := range []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Expect", "Te"} {
		to.Del(name)
	}
}

// signIn returns the address of the sign-in page, with the way back as the parameter rd.
func (x *exchange) signIn(page string) string {
	uri, _ := x.variable("request_uri")
	page = clean(x.expand(page))
	if strings.Contains(page, "rd=") {
		return page
	}
	separator := "?"
	if strings.Contains(page, "?") {
		separator = "&"
	}
	return page + separator + "rd=" + url.QueryEscape(x.scheme()+"://"+x.rawHost+uri)
}
