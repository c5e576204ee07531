package ingress

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
)

// corsHeaders are ingress-nginx' default of cors-allow-headers.
const corsHeaders = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"

func (r *reader) cors(on bool) {
	if !on {
		return
	}
	f := &gatewayv1.HTTPCORSFilter{MaxAge: 1728000, AllowCredentials: new(r.get("cors-allow-credentials") != "false")}
	for _, o := range list(cmp.Or(r.get("cors-allow-origin"), "*")) {
		f.AllowOrigins = append(f.AllowOrigins, gatewayv1.CORSOrigin(o))
	}
	for _, v := range list(cmp.Or(r.get("cors-allow-methods"), "GET, PUT, POST, DELETE, PATCH, OPTIONS")) {
		f.AllowMethods = append(f.AllowMethods, gatewayv1.HTTPMethodWithWildcard(v))
	}
	for _, v := range list(cmp.Or(r.get("cors-allow-headers"), corsHeaders)) {
		f.AllowHeaders = append(f.AllowHeaders, gatewayv1.HTTPHeaderName(v))
	}
	for _, v := range list(r.get("cors-expose-headers")) {
		f.ExposeHeaders = append(f.ExposeHeaders, gatewayv1.HTTPHeaderName(v))
	}
	if v := r.get("cors-max-age"); v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			r.wrong("cors-max-age", v, "a number of seconds")
		} else {
			f.MaxAge = int32(n)
		}
	}
	r.filters = append(r.filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterCORS, CORS: f})
}

func (r *reader) customHeaders(key, _ string) {
	name := customHeaders(r.g)
	c := r.ConfigMaps[name]
	if c == nil {
		r.note(r.g, Lost, key, "ConfigMap %s is not there", name)
		return
	}
	f := &gatewayv1.HTTPHeaderFilter{}
	for _, k := range sortedKeys(c.Data) {
		f.Set = append(f.Set, gatewayv1.HTTPHeader{Name: gatewayv1.HTTPHeaderName(k), Value: c.Data[k]})
	}
	r.filters = append(r.filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterResponseHeaderModifier, ResponseHeaderModifier: f})
}

func (r *reader) forwardedPrefix(key, value string) {
	if strings.Contains(value, "$") {
		r.note(r.g, Lost, key, "%q: a header cannot have groups of a regular expression", value)
		return
	}
	r.filters = append(r.filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier,
		RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{Set: []gatewayv1.HTTPHeader{{Name: "X-Forwarded-Prefix", Value: value}}}})
}

// redirectTo translates permanent-redirect and temporal-redirect. The target's path replaces the request's, as in
// ingress-nginx, unless it ends in $request_uri.
func (r *reader) redirectTo(key, value string) {
	target, keepPath := strings.CutSuffix(value, "$request_uri")
	u, err := url.Parse(target)
	if err != nil || strings.Contains(target, "$") || u.RawQuery != "" || u.Fragment != "" {
		r.note(r.g, Lost, key, "%q: a redirect has a scheme, a host, a port and a path, without variables and query", value)
		return
	}
	f := &gatewayv1.HTTPRequestRedirectFilter{StatusCode: new(302)}
	if key == "permanent-redirect" {
		f.StatusCode = new(301)
	}
	if code := r.get(key + "-code"); code != "" {
		n, err := strconv.Atoi(code)
		if err != nil || !slices.Contains([]int{301, 302, 303, 307, 308}, n) {
			r.wrong(key+"-code", code, "301, 302, 303, 307 or 308")
		} else {
			f.StatusCode = &n
		}
	}
	if u.Scheme != "" {
		f.Scheme = &u.Scheme
	}
	if u.Hostname() != "" {
		f.Hostname = new(gatewayv1.PreciseHostname(u.Hostname()))
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		f.Port = new(gatewayv1.PortNumber(port))
	}
	if !keepPath {
		f.Path = fullPath(cmp.Or(u.Path, "/"))
	}
	r.redirect = f
}

// sizes are the units of nginx.
var sizes = map[byte]string{'k': "Ki", 'K': "Ki", 'm': "Mi", 'M': "Mi", 'g': "Gi", 'G': "Gi"}

func (r *reader) bodySize(key, value string) {
	digits, unit := value, ""
	if n := len(value); n > 0 && sizes[value[n-1]] != "" {
		digits, unit = value[:n-1], sizes[value[n-1]]
	}
	n, err := strconv.ParseUint(digits, 10, 40)
	if err != nil {
		r.wrong(key, value, "a size of nginx, as 8m")
		return
	}
	r.policy.MaxBodySize = strconv.FormatUint(n, 10) + unit
	if n == 0 {
		r.policy.MaxBodySize = "0"
	}
}

// seconds reads a time of ingress-nginx: a number of seconds, or nginx' own form.
func seconds(value string) (time.Duration, bool) {
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	d, err := time.ParseDuration(value)
	return d, err == nil && d >= 0
}

func (r *reader) stepTimeout(key, value string) {
	d, ok := seconds(value)
	if !ok {
		r.wrong(key, value, "a number of seconds")
		return
	}
	t := r.policy.Timeouts
	if t == nil {
		t = &Timeouts{}
		r.policy.Timeouts = t
	}
	switch key {
	case "proxy-connect-timeout":
		t.Connect = duration(d)
	case "proxy-read-timeout":
		t.Read = duration(d)
	default:
		t.Send = duration(d)
	}
}

func (r *reader) retry(key, value string) {
	p := &Retry{}
	for _, word := range strings.Fields(value) {
		if code, ok := strings.CutPrefix(word, "http_"); ok {
			n, err := strconv.Atoi(code)
			if err != nil || n < 400 || n > 599 {
				r.wrong(key, word, "a status of an error, as http_503")
				continue
			}
			p.Codes = append(p.Codes, n)
		} else if word == "non_idempotent" {
			p.Unsafe = true
		} else if word == "off" {
			r.note(r.g, Differs, key, "off: a request of which nothing was sent is still sent to another endpoint")
		} else if !slices.Contains([]string{"error", "timeout", "invalid_header"}, word) {
			r.wrong(key, word, "a condition of proxy_next_upstream")
		}
	}
	if tries := r.get("proxy-next-upstream-tries"); tries != "" {
		n, err := strconv.Atoi(tries)
		if err != nil || n < 0 {
			r.wrong("proxy-next-upstream-tries", tries, "a number")
		} else {
			p.Attempts = min(n, maxAttempts)
		}
	}
	r.policy.Retry = p
}

func (r *reader) clients(key, value string) {
	ranges := r.addresses(key, value)
	if len(ranges) == 0 {
		return
	}
	c := r.policy.Clients
	if c == nil {
		c = &Clients{}
		r.policy.Clients = c
	}
	if key == "denylist-source-range" {
		c.Deny = ranges
	} else {
		c.Allow = append(c.Allow, ranges...)
	}
}

func (r *reader) basicAuth(key, value string) {
	secret := r.get("auth-secret")
	switch {
	case value != "basic":
		r.note(r.g, Lost, key, "%q: only basic is supported", value)
	case secret == "":
		r.note(r.g, Lost, key, "auth-secret is absent")
	case strings.Contains(secret, "/"):
		r.note(r.g, Lost, key, "Secret %s is in another namespace: copy it to %s", secret, r.g.Namespace)
	case r.get("auth-secret-type") == "auth-map":
		r.note(r.g, Lost, "auth-secret-type", "auth-map: write the Secret's entries as lines of its key auth (htpasswd)")
	default:
		r.policy.BasicAuth = &BasicAuth{SecretRef: Named{Name: secret}, Realm: r.form("auth-realm", r.get("auth-realm"), freeForm, "a text of at most 256 letters")}
	}
}

func (r *reader) forwardAuth(key, value string) {
	if strings.Contains(value, "$") {
		r.note(r.g, Lost, key, "%q: an address with variables is not supported", value)
		return
	}
	if r.form(key, value, urlForm, "a URL of http or https") == "" {
		return
	}
	signIn := r.get("auth-signin")
	if strings.Contains(signIn, "$") {
		base, _, _ := strings.Cut(signIn, "?")
		r.note(r.g, Differs, "auth-signin", "%q: variables are not supported; the request's address is added as rd", signIn)
		signIn = base
	}
	auth := &ForwardAuth{
		URL: value, Method: r.form("auth-method", r.get("auth-method"), methodForm, "a method"),
		SignInURL: r.form("auth-signin", signIn, signInForm, "a URL of http or https, or a path"),
	}
	for _, name := range list(r.get("auth-response-headers")) {
		if r.form("auth-response-headers", name, tokenForm, "a header") != "" {
			auth.ResponseHeaders = append(auth.ResponseHeaders, name)
		}
	}
	r.policy.ForwardAuth = auth
}

func (r *reader) limits(key, value string) {
	n, err := strconv.Atoi(value)
	if err != nil || n <= 0 {
		r.wrong(key, value, "a number above 0")
		return
	}
	l := r.policy.RateLimit
	if l == nil {
		l = &RateLimit{Exempt: r.addresses("limit-whitelist", r.get("limit-whitelist"))}
		r.policy.RateLimit = l
	}
	n = min(n, maxCount)
	multiplier := 5
	if v, err := strconv.Atoi(r.get("limit-burst-multiplier")); err == nil && v > 0 {
		multiplier = min(v, maxCount)
	}
	switch key {
	case "limit-connections":
		l.Connections = n
	case "limit-rpm":
		if l.RequestsPerSecond == "" {
			l.RequestsPerSecond, l.Burst = strconv.FormatFloat(float64(n)/60, 'f', 4, 64), min(n*multiplier, maxCount)
		}
	case "limit-rps":
		if l.RequestsPerSecond != "" {
			r.note(r.g, Differs, key, "limit-rpm counts also; a policy has one rate: limit-rps")
		}
		l.RequestsPerSecond, l.Burst = strconv.Itoa(n), min(n*multiplier, maxCount)
	}
}

func (r *reader) session(key, value string) {
	if value != "cookie" {
		r.note(r.g, Lost, key, "%q: only cookie is supported", value)
		return
	}
	s := &Session{
		CookieName: cmp.Or(r.form("session-cookie-name", r.get("session-cookie-name"), tokenForm, "a name of a cookie"), "INGRESSCOOKIE"),
		Path:       r.form("session-cookie-path", r.get("session-cookie-path"), pathForm, "a path"),
		Secure:     r.get("session-cookie-secure") == "true", Balanced: r.get("affinity-mode") != "persistent",
	}
	if v := r.get("session-cookie-samesite"); slices.Contains([]string{"", "Strict", "Lax", "None"}, v) {
		s.SameSite = v
	} else {
		r.wrong("session-cookie-samesite", v, "Strict, Lax or None")
	}
	if age := cmp.Or(r.get("session-cookie-max-age"), r.get("session-cookie-expires")); age != "" {
		if d, ok := seconds(age); ok {
			s.MaxAge = duration(d)
		} else {
			r.wrong("session-cookie-max-age", age, "a number of seconds")
		}
	}
	r.policy.Session = s
}

// speak notes what a backend that does not speak clear HTTP/1.1 needs, and makes its BackendTLSPolicy.
func (m *migration) speak(g *networkingv1.Ingress, meaning *meaning, service string, port int32) {
	switch meaning.protocol {
	case "", "HTTP", "AUTO_HTTP":
		return
	case "GRPC":
		m.note(g, Lost, "backend-protocol", "GRPC: set appProtocol: kubernetes.io/h2c on port %d of Service %s", port, service)
		return
	case "HTTPS", "GRPCS":
	default:
		m.note(g, Lost, "backend-protocol", "%s is not supported", meaning.protocol)
		return
	}
	name := api.Name{Namespace: g.Namespace, Name: service}
	if m.backendTLS[name] != nil {
		return
	}
	system := gatewayv1.WellKnownCACertificatesSystem
	p := &gatewayv1.BackendTLSPolicy{TypeMeta: typeMeta("BackendTLSPolicy")}
	p.Namespace, p.Name = name.Namespace, name.Name
	p.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: gatewayv1.ObjectName(service)}}}
	p.Spec.Validation.Hostname = gatewayv1.PreciseHostname(cmp.Or(meaning.serverName, fmt.Sprintf("%s.%s.svc", service, g.Namespace)))
	p.Spec.Validation.WellKnownCACertificates = &system
	m.backendTLS[name] = p
	if !meaning.verify {
		m.note(g, Differs, "backend-protocol", "%s: ingress-nginx accepts any certificate of Service %s, a BackendTLSPolicy does not. Name the CA and the certificate's host in it", meaning.protocol, service)
	}
}
