package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"
)

// policy forbids other sites, inline code, frames, forms, and text as HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// tokenHeader is the header for the token of requests that change something.
const tokenHeader = "X-Fairway-Token"

// A guard admits requests. The listener can be reached by every user of the machine, and by every site in a browser.
type guard struct {
	hosts  []string
	token  string // of the URL, later of the cookie
	form   string // of requests that change something; only the page itself knows it
	cookie string // cookies do not know ports, so the name has the port
}

func newGuard(host, token string) guard {
	g := guard{hosts: []string{host}, token: token, form: rand.Text(), cookie: "fairway-page"}
	if _, port, err := net.SplitHostPort(host); err == nil {
		g.hosts = append(g.hosts, "localhost:"+port) // of a tunnel
		g.cookie += "-" + port
	}
	return g
}

// admit reports whether a request may go on. If not, admit has answered it.
func (g *guard) admit(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	status, why := g.refusal(w, r)
	if status != 0 && why != "" {
		http.Error(w, why, status)
	}
	return status == 0
}

// refusal returns the status of a refused request; 0: the request may go on.
func (g *guard) refusal(w http.ResponseWriter, r *http.Request) (status int, why string) {
	first := r.Method == http.MethodGet && r.URL.Path == "/"
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	switch {
	case !slices.Contains(g.hosts, r.Host): // a foreign name that resolves to this machine
		return http.StatusMisdirectedRequest, "wrong Host: open the URL that fairway page printed"
	case origin != "" && origin != "http://"+r.Host, (site == "cross-site" || site == "same-site") && !first:
		return http.StatusForbidden, "another site sent this request"
	}
	if given := r.URL.Query().Get("token"); first && equal(given, g.token) {
		http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: given, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		http.Redirect(w, r, "/", http.StatusSeeOther) // keeps the token out of the address bar
		return http.StatusSeeOther, ""
	}
	c, err := r.Cookie(g.cookie)
	switch {
	case err != nil || !equal(c.Value, g.token):
		return http.StatusForbidden, "open the URL that fairway page printed: it has the token"
	case r.Method != http.MethodGet && !equal(r.Header.Get(tokenHeader), g.form):
		return http.StatusForbidden, "the request lacks the page's token: load the page again"
	}
	return 0, ""
}

func equal(given, token string) bool {
	return subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1
}

// begin takes a place for a limited time. If all places are taken, it answers the request.
func begin(w http.ResponseWriter, r *http.Request, places chan struct{}, limit time.Duration) (ctx context.Context, done func(), ok bool) {
	select {
	case places <- struct{}{}:
	default:
		writeError(w, http.StatusServiceUnavailable, errBusy)
		return nil, nil, false
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	return ctx, func() { cancel(); <-places }, true
}

var errBusy = errors.New("the page is busy with other requests [try again in a moment]")
