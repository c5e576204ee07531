package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A session's cookie is a keyed hash of its endpoint. So it names the endpoint without telling its address, a client cannot
// make one up, and all gateways with the same key understand it.

// tag returns the name of the endpoint in cookies.
func (e *endpoint) tag(key []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(e.up.key.service.String() + " " + e.text))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)[:18])
}

// sessionName is the name of the cookie or the header.
func sessionName(s *gateway.Session) string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Header:
		return "Fairway-Session"
	}
	return "fairway-session"
}

// sessionEndpoint returns the endpoint that the client's cookie names. A client without one, or whose endpoint is gone or
// ejected, gets the next endpoint and its cookie.
func (x *exchange) sessionEndpoint(u *upstream) *endpoint {
	s := x.decision.Rule.Session
	var tag string
	if s.Header {
		tag, _ = x.in.Header(canonical(sessionName(s)))
	} else {
		tag, _ = cookieOf(x.in, sessionName(s))
	}
	if tag != "" {
		if e := u.set.Load().tags()[tag]; e != nil && e.health.usable(u, x.started) {
			if s.Header || s.Idle > 0 {
				x.session = strings.Clone(tag)
			}
			return e
		}
	}
	e := u.pick(nil, x.started)
	if e != nil {
		x.session = e.tag(x.srv.SessionKey)
	}
	return e
}

// setSession tells the client its session.
func (x *exchange) setSession(h header) {
	s := x.decision.Rule.Session
	if s.Header {
		h.Set(canonical(sessionName(s)), x.session)
		return
	}
	var b strings.Builder
	b.WriteString(sessionName(s) + "=" + x.session)
	path := s.Path
	if path == "" {
		path = "/"
	}
	b.WriteString("; Path=" + clean(path))
	life := s.Lifetime
	if s.Idle > 0 && (life == 0 || s.Idle < life) {
		life = s.Idle
	}
	if life > 0 {
		b.WriteString("; Max-Age=" + strconv.Itoa(int(life/time.Second)))
	}
	b.WriteString("; HttpOnly")
	if s.Secure || x.tls {
		b.WriteString("; Secure")
	}
	if s.SameSite != "" {
		b.WriteString("; SameSite=" + clean(s.SameSite))
	}
	h.Add("Set-Cookie", b.String())
}

// cookieOf returns a cookie of a request.
func cookieOf(in gateway.Request, name string) (string, bool) {
	line, ok := in.Header("Cookie")
	if !ok {
		return "", false
	}
	for part := range strings.FieldsFuncSeq(line, func(r rune) bool { return r == ';' || r == ',' }) {
		if key, value, _ := strings.Cut(strings.TrimSpace(part), "="); key == name {
			return value, true
		}
	}
	return "", false
}

// hashKey is the hash for upstream-hash-by.
func (x *exchange) hashKey() uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(x.expand(x.decision.Rule.HashBy))) // a hash does not fail
	return h.Sum32()
}

func canonical(name string) string { return http.CanonicalHeaderKey(name) }
