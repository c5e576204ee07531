package ingress

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// readPolicy translates what Gateway API does not have into a RoutePolicy.
func (r *reader) readPolicy() {
	f, p := &r.Filters, &RoutePolicySpec{AccessLog: r.Filters.AccessLog}
	if len(f.Allow)+len(f.Deny) > 0 {
		p.Clients = &Clients{Allow: texts(f.Allow), Deny: texts(f.Deny)}
	}
	if f.MaxBody > 0 {
		p.MaxBodySize = size(f.MaxBody)
	}
	r.rateLimit(p)
	r.basicAuth(p)
	r.forwardAuth(p)
	if r.ClientCAs != (api.Name{}) {
		r.shut("auth-tls-secret", "clients' certificates are checked for a whole listener: set tls.frontend in the Gateway")
	}
	r.session(p)
	r.retry(p)
	p.HashBy = r.form("upstream-hash-by", r.HashBy, freeForm, "a text of at most 256 letters")
	if r.ConnectTimeout+r.ReadTimeout+r.SendTimeout > 0 {
		p.Timeouts = &Timeouts{Connect: timeout(r.ConnectTimeout), Read: timeout(r.ReadTimeout), Send: timeout(r.SendTimeout)}
	}
	if p.Clients != nil || p.RateLimit != nil || p.BasicAuth != nil || p.ForwardAuth != nil || p.MaxBodySize != "" || p.AccessLog != nil ||
		p.Session != nil || p.HashBy != "" || p.Timeouts != nil || p.Retry != nil {
		r.policy = p
	}
}

func texts(all []netip.Prefix) (out []string) {
	for _, p := range all {
		out = append(out, p.String())
	}
	return out
}

// size writes a number of bytes as a quantity.
func size(n int64) string {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

func timeout(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return duration(d)
}

func (r *reader) rateLimit(p *RoutePolicySpec) {
	l := r.Filters.Limits
	if l == nil {
		return
	}
	p.RateLimit = &RateLimit{Burst: min(l.Burst, maxCount), Connections: min(l.Connections, maxCount), Exempt: texts(l.Exempt)}
	if l.PerSecond > 0 {
		p.RateLimit.RequestsPerSecond = strconv.FormatFloat(min(l.PerSecond, maxCount), 'f', -1, 64)
	}
}

func (r *reader) basicAuth(p *RoutePolicySpec) {
	switch a := r.BasicAuth; {
	case a == nil:
	case a.Secret.Namespace != r.g.Namespace:
		r.shut("auth-secret", "Secret %s is in another namespace: copy it to %s", a.Secret, r.g.Namespace)
	case a.Kind == "auth-map":
		r.shut("auth-secret-type", "auth-map: write the Secret's entries as lines of its key auth (htpasswd)")
	default:
		p.BasicAuth = &BasicAuth{SecretRef: Named{Name: a.Secret.Name}, Realm: r.form("auth-realm", a.Realm, freeForm, "a text of at most 256 letters")}
	}
}

func (r *reader) forwardAuth(p *RoutePolicySpec) {
	const key = "auth-url"
	f := r.Filters.ForwardAuth
	switch {
	case f == nil:
		return
	case strings.Contains(f.URL, "$"):
		r.shut(key, "%q: write an address without variables", f.URL)
		return
	case !urlForm.MatchString(f.URL):
		r.shut(key, "%q is not a URL of http or https", f.URL)
		return
	}
	signIn := f.SignIn
	if strings.Contains(signIn, "$") {
		base, _, _ := strings.Cut(signIn, "?")
		r.note(r.g, Differs, "auth-signin", "%q: variables are not supported; the request's address is added as rd", signIn)
		signIn = base
	}
	auth := &ForwardAuth{
		URL: f.URL, Method: r.form("auth-method", f.Method, methodForm, "a method"),
		SignInURL: r.form("auth-signin", signIn, signInForm, "a URL of http or https, or a path"),
	}
	for _, name := range f.Headers {
		if r.form("auth-response-headers", name, tokenForm, "a header") != "" {
			auth.ResponseHeaders = append(auth.ResponseHeaders, name)
		}
	}
	p.ForwardAuth = auth
}

func (r *reader) session(p *RoutePolicySpec) {
	from := r.Session
	if from == nil {
		return
	}
	p.Session = &Session{
		CookieName: r.form("session-cookie-name", from.Name, tokenForm, "a name of a cookie"),
		Path:       r.form("session-cookie-path", from.Path, pathForm, "a path"), Secure: from.Secure, Balanced: from.Balanced, MaxAge: timeout(from.Lifetime),
	}
	if v := from.SameSite; slices.Contains([]string{"", "Strict", "Lax", "None"}, v) {
		p.Session.SameSite = v
	} else {
		r.note(r.g, Lost, "session-cookie-samesite", "%q is not Strict, Lax or None", v)
	}
}

// retry translates proxy-next-upstream. What every route does anyhow needs no policy: a request that was not sent is sent
// to another endpoint.
func (r *reader) retry(p *RoutePolicySpec) {
	const key, anyhow = "proxy-next-upstream", 3
	switch from := r.Retry; {
	case from == nil:
	case from.ConnectOnly && from.Attempts == 0:
		r.note(r.g, Differs, key, "off: a request of which nothing was sent is still sent to another endpoint")
	case from.ConnectOnly && from.Attempts > anyhow:
		r.note(r.g, Differs, key, "a request of which nothing was sent is sent to %d other endpoints at most", anyhow)
	case !from.ConnectOnly:
		p.Retry = &Retry{Attempts: min(from.Attempts, maxAttempts), Codes: from.Codes, Unsafe: from.Unsafe}
	}
}
