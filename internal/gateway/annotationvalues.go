package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
)

// suggestion names the annotation that a user may have meant.
func suggestion(name string) string {
	known := make([]string, 0, len(annotationReaders))
	for k := range annotationReaders {
		known = append(known, k)
	}
	slices.Sort(known)
	if s := text.Closest(name, known); s != "" {
		return " [did you mean " + s + "?]"
	}
	return ""
}

func (a annotation) readBool(to *bool) {
	on, err := strconv.ParseBool(a.value)
	if err != nil {
		a.invalid("write true or false")
		return
	}
	*to = on
}

// readSeconds reads a number of seconds, or a time as nginx writes it: 90, 90s, 5m.
func (a annotation) readSeconds(to *time.Duration) {
	if n, err := strconv.ParseUint(a.value, 10, 31); err == nil {
		*to = time.Duration(n) * time.Second
		return
	}
	d, err := time.ParseDuration(a.value)
	if err != nil || d < 0 {
		a.invalid("write a number of seconds")
		return
	}
	*to = d
}

func (a annotation) readBodySize() {
	number, unit := a.value, int64(1)
	if n := len(number); n > 0 {
		if i := strings.IndexByte("bkmg", number[n-1]|0x20); i >= 0 {
			number, unit = number[:n-1], int64(1)<<(10*i)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > 1<<40 {
		a.invalid("write a size, for example 8m, or 0 for no bound")
		return
	}
	a.options.filters.MaxBody = n * unit
}

func readBodySize(a annotation) { a.readBodySize() }

// split reads a list with commas.
func split(value string) (all []string) {
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

func (a annotation) readPrefixes(to *[]netip.Prefix) {
	all, err := prefixes(split(a.value))
	if err != nil || len(all) == 0 {
		a.close(annotationInvalid, cmp.Or(errText(err), "it names no clients"))
		return
	}
	*to = append(*to, all...)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func readAppRoot(a annotation) {
	if !strings.HasPrefix(a.value, "/") || !validValue(a.value) {
		a.invalid("write a path that begins with /")
		return
	}
	a.options.appRoot = a.value
}

// validValue reports whether a text can be part of a header.
func validValue(s string) bool { return !strings.ContainsAny(s, "\r\n\x00") }

func readBackendProtocol(a annotation) {
	p := &a.options.protocol
	switch strings.ToUpper(a.value) {
	case "HTTP", "AUTO_HTTP":
	case "HTTPS":
		p.tls = &BackendTLS{}
	case "GRPC":
		p.protocol = H2C
	case "GRPCS":
		p.protocol, p.tls = H2C, &BackendTLS{}
	default:
		a.invalid("use HTTP, HTTPS, GRPC or GRPCS")
		a.options.closed = cmp.Or(a.options.closed, "backend-protocol "+a.value+" is not supported")
	}
}

// readCustomHeaders reads a ConfigMap with headers for answers.
func readCustomHeaders(a annotation) {
	name := a.named(a.value)
	if !a.c.allowed(a.unit.ref, a.unit.ref, KindConfigMap, name) {
		a.problem(reasonRefNotPermitted, "%s: no ReferenceGrant in namespace %s lets this Ingress use ConfigMap %s", a.key, name.Namespace, name)
		return
	}
	m, _ := a.c.read(a.unit.ref, KindConfigMap, name).(*ConfigMap)
	if m == nil {
		a.problem(annotationInvalid, "%s: ConfigMap %s %v", a.key, name, errNoObject)
		return
	}
	change := &HeaderChange{}
	for k, v := range m.Data {
		change.Set = append(change.Set, Header{canonicalName(k), v})
	}
	slices.SortFunc(change.Set, func(x, y Header) int { return strings.Compare(x.Name, y.Name) })
	if text := change.fault(); text != "" {
		a.problem(annotationInvalid, "%s: ConfigMap %s: %s", a.key, name, text)
		return
	}
	a.options.filters.ResponseHeaders = change
}

func readForwardedPrefix(a annotation) {
	if !validValue(a.value) {
		a.invalid("write a path")
		return
	}
	a.options.filters.RequestHeaders = &HeaderChange{Set: []Header{{"X-Forwarded-Prefix", a.value}}}
}

func (a annotation) rewrite() *Rewrite {
	if a.options.filters.Rewrite == nil {
		a.options.filters.Rewrite = &Rewrite{}
	}
	return a.options.filters.Rewrite
}

func readRewriteTarget(a annotation) {
	if !validValue(a.value) || a.value == "" || variable(a.value, "") {
		a.invalid("write a path; only $1 to $9 are replaced")
		a.options.closed = cmp.Or(a.options.closed, "rewrite-target cannot be read")
		return
	}
	a.rewrite().Target = a.value
}

func readVhost(a annotation) {
	if !validValue(a.value) || strings.ContainsAny(a.value, "$/ ") {
		a.invalid("write a host name; variables are not supported")
		return
	}
	a.rewrite().Host = a.value
}

func readAliases(a annotation) {
	for _, alias := range split(strings.ReplaceAll(a.value, " ", ",")) {
		if strings.HasPrefix(alias, "~") {
			a.invalid("regular expressions are not supported; write host names")
			continue
		}
		a.options.aliases = append(a.options.aliases, lower(alias))
	}
}

// variable reports whether a text has a variable of nginx, other than the allowed ones and groups like $1.
func variable(s string, allowed ...string) bool {
	for i := strings.IndexByte(s, '$'); i >= 0; i = strings.IndexByte(s, '$') {
		s = s[i+1:]
		end := 0
		for end < len(s) && (s[end] == '_' || s[end]|0x20 >= 'a' && s[end]|0x20 <= 'z') {
			end++
		}
		if group := end == 0 && s != "" && s[0] >= '1' && s[0] <= '9'; !group && !slices.Contains(allowed, s[:end]) {
			return true
		}
	}
	return false
}

// readRedirects reads permanent-redirect and temporal-redirect; the latter wins.
func (b *ingressBuild) readRedirects() {
	for _, kind := range []struct {
		key      string
		fallback int
	}{{"permanent-redirect", 301}, {"temporal-redirect", 302}} {
		target := b.get(kind.key)
		if target == "" {
			continue
		}
		a := annotation{b, kind.key, target}
		if !validValue(target) || variable(target, "request_uri", "uri", "host", "scheme", "args", "is_args") || redirectScheme(target) {
			a.invalid("write a URL of http or https")
			b.options.closed = cmp.Or(b.options.closed, kind.key+" cannot be read")
			continue
		}
		code := kind.fallback
		if text := b.get(kind.key + "-code"); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 300 || n > 308 {
				annotation{b, kind.key + "-code", text}.invalid("write a status from 300 to 308")
			} else {
				code = n
			}
		}
		b.options.filters.Redirect = &Redirect{URL: target, Code: code}
	}
}

// redirectScheme reports whether a target has a scheme other than http and https.
func redirectScheme(target string) bool {
	scheme, _, ok := strings.Cut(target, ":")
	return ok && !strings.ContainsAny(scheme, "/$?#") && scheme != "http" && scheme != "https"
}

// readCORS reads the cors annotations with the defaults of ingress-nginx.
func (b *ingressBuild) readCORS() {
	if b.get("enable-cors") != "true" {
		return
	}
	or := func(key, fallback string) []string { return split(cmp.Or(b.get("cors-"+key), fallback)) }
	c := &CORS{
		Origins:     or("allow-origin", "*"),
		Methods:     or("allow-methods", "GET, PUT, POST, DELETE, PATCH, OPTIONS"),
		Headers:     or("allow-headers", "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"),
		Expose:      or("expose-headers", ""),
		Credentials: b.get("cors-allow-credentials") != "false",
		MaxAge:      1728000 * time.Second,
	}
	if age := b.get("cors-max-age"); age != "" {
		annotation{b, "cors-max-age", age}.readSeconds(&c.MaxAge)
	}
	for _, values := range [][]string{c.Origins, c.Methods, c.Headers, c.Expose} {
		for _, v := range values {
			if !validValue(v) {
				annotation{b, "enable-cors", v}.invalid("remove the line break")
				return
			}
		}
	}
	b.options.filters.CORS = c
}

// readAffinity reads the session cookie.
func (b *ingressBuild) readAffinity() {
	switch affinity := b.get("affinity"); affinity {
	case "":
		return
	case "cookie":
	default:
		annotation{b, "affinity", affinity}.invalid("only cookie is supported")
		return
	}
	s := &Session{
		Name: cmp.Or(b.get("session-cookie-name"), "INGRESSCOOKIE"), Path: cmp.Or(b.get("session-cookie-path"), "/"),
		SameSite: b.get("session-cookie-samesite"), Secure: b.get("session-cookie-secure") == "true",
		Balanced: b.get("affinity-mode") != "persistent",
	}
	for _, key := range []string{"session-cookie-expires", "session-cookie-max-age"} {
		if v := b.get(key); v != "" {
			annotation{b, key, v}.readSeconds(&s.Lifetime)
		}
	}
	if !validHeaderName(s.Name) || !validValue(s.Path) || strings.ContainsAny(s.Path+s.SameSite, ";,") {
		annotation{b, "session-cookie-name", s.Name}.invalid("write a cookie's name and path")
		return
	}
	b.options.session = s
}

// readLimits reads the limits of requests and connections. nginx lets burst-multiplier times the rate pass at once.
func readLimits(a annotation) {
	n, err := strconv.ParseUint(a.value, 10, 31)
	if err != nil {
		a.close(annotationInvalid, fmt.Sprintf("%q is no number", api.Cut(a.value, 100)))
		return
	}
	if n == 0 {
		return
	}
	l := a.options.filters.Limits
	if l == nil {
		l = &Limits{}
		a.options.filters.Limits = l
		exempt, err := prefixes(append(split(a.get("limit-whitelist")), split(a.get("limit-allowlist"))...))
		if err != nil {
			a.problem(annotationInvalid, "limit-allowlist: %v", err)
		}
		l.Exempt = exempt
	}
	burst := 5
	if m, err := strconv.Atoi(a.get("limit-burst-multiplier")); err == nil && m > 0 {
		burst = m
	}
	perSecond := float64(n)
	switch a.key {
	case "limit-connections":
		l.Connections = int(n)
		return
	case "limit-rpm":
		perSecond /= 60
	}
	if l.PerSecond != 0 {
		a.problem(annotationUnsupported, "limit-rps and limit-rpm together are not supported; the lower rate counts")
		perSecond = min(perSecond, l.PerSecond)
	}
	l.PerSecond, l.Burst = perSecond, int(n)*burst
}

// readNextUpstream reads when a request is sent to another endpoint.
func readNextUpstream(a annotation) {
	r := &Retry{Attempts: 2, ConnectOnly: true}
	if n, err := strconv.Atoi(a.get("proxy-next-upstream-tries")); err == nil && n >= 0 {
		r.Attempts = min(max(n-1, 0), 10)
		if n == 0 {
			r.Attempts = 10
		}
	}
	for word := range strings.FieldsSeq(a.value) {
		switch {
		case word == "error":
		case word == "timeout" || word == "invalid_header":
			r.ConnectOnly = false
		case word == "non_idempotent":
			r.Unsafe = true
		case word == "off":
			r.Attempts = 0
		case strings.HasPrefix(word, "http_"):
			code, err := strconv.Atoi(word[len("http_"):])
			if err != nil || code < 400 || code > 599 {
				a.invalid("write error, timeout, http_502 … or off")
				return
			}
			r.Codes, r.ConnectOnly = append(r.Codes, code), false
		default:
			a.invalid("write error, timeout, http_502 … or off")
			return
		}
	}
	a.options.retry = r
}

func readHashBy(a annotation) {
	if variable(a.value, "remote_addr", "request_uri", "uri", "host", "http_", "arg_", "cookie_", "args") && !hashVariable(a.value) {
		a.invalid("use $remote_addr, $request_uri, $uri, $host, $http_NAME, $arg_NAME or $cookie_NAME")
		return
	}
	a.options.hashBy = a.value
}

func hashVariable(value string) bool {
	for _, prefix := range []string{"$http_", "$arg_", "$cookie_"} {
		if strings.HasPrefix(value, prefix) && strings.Count(value, "$") == 1 {
			return true
		}
	}
	return false
}

// readMirror reads mirror-target, if it is a Service of the cluster: http://NAME.NAMESPACE.svc…/PATH.
func readMirror(a annotation) {
	target := strings.TrimSuffix(a.value, "$request_uri")
	u, err := url.Parse(target)
	labels := []string{}
	if err == nil {
		labels = strings.Split(u.Hostname(), ".")
	}
	if err != nil || u.Scheme != "http" || len(labels) < 2 || len(labels) > 2 && labels[2] != "svc" {
		a.problem(annotationUnsupported, "mirror-target: only a Service is supported [write http://NAME.NAMESPACE.svc.cluster.local$request_uri]")
		return
	}
	port, _ := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	var f faults
	ref := ObjectRef{GroupKind: GroupKind{Kind: string(KindService)}, Namespace: labels[1], Name: labels[0], Port: uint16(port)}
	b := a.c.backend(a.unit.ref, ref, 1, &f)
	if b.Refused != "" {
		a.problem(f.unresolved, "mirror-target: %s", f.text)
		return
	}
	m := Mirror{Backend: b, Numerator: 1, Denominator: 1}
	if target == a.value {
		m.Path = u.Path
	}
	a.options.filters.Mirrors = append(a.options.filters.Mirrors, m)
}

// readAuth reads basic authentication, forward authentication and clients' certificates. Whatever cannot be read closes
// the Ingress.
func (b *ingressBuild) readAuth() {
	if kind := b.get("auth-type"); kind != "" {
		a := annotation{b, "auth-type", kind}
		if kind != "basic" {
			a.close(annotationUnsupported, kind+" is not supported [use basic]")
		} else if name, ok := (annotation{b, "auth-secret", b.get("auth-secret")}).secretName(b.get("auth-secret")); ok {
			auth, err := b.c.basicAuth(b.unit.ref, b.unit.ref, name, b.get("auth-secret-type"), b.get("auth-realm"))
			if err != nil {
				a.close(annotationInvalid, err.Error())
			}
			b.options.filters.BasicAuth = auth
		}
	}
	if target := b.get("auth-url"); target != "" {
		b.readForwardAuth(annotation{b, "auth-url", target})
	}
	if secret := b.get("auth-tls-secret"); secret != "" {
		b.readClientCAs(annotation{b, "auth-tls-secret", secret})
	}
}

// authVariables are the variables of nginx in the URLs of forward authentication.
var authVariables = []string{"host", "scheme", "request_uri", "escaped_request_uri", "uri", "http_host"}

func (b *ingressBuild) readForwardAuth(a annotation) {
	signIn := b.get("auth-signin")
	if variable(a.value, authVariables...) || variable(signIn, authVariables...) || !validValue(a.value+signIn) {
		a.close(annotationInvalid, "a variable in the URL is not known")
		return
	}
	if u, err := url.Parse(a.value); err != nil || !strings.HasPrefix(u.Host, "$") {
		if err := b.c.checkAuthURL(b.unit.ref, b.unit.ref, a.value); err != nil {
			a.close(annotationInvalid, err.Error())
			return
		}
	}
	f := &ForwardAuth{URL: a.value, Method: b.get("auth-method"), SignIn: signIn}
	for _, h := range split(b.get("auth-response-headers")) {
		if validHeaderName(h) {
			f.Headers = append(f.Headers, canonicalName(h))
		}
	}
	b.options.filters.ForwardAuth = f
	if d := b.get("auth-cache-duration"); d != "" {
		b.problem(annotationNeedless, "auth-cache-duration has no effect: each request is asked for")
	}
}

func (b *ingressBuild) readClientCAs(a annotation) {
	switch verify := b.get("auth-tls-verify-client"); verify {
	case "off":
		return
	case "", "on":
	default:
		a.problem(annotationUnsupported, "auth-tls-verify-client: %s is not supported; clients need a certificate", verify)
	}
	name, ok := a.secretName(a.value)
	if !ok {
		return
	}
	pool, err := b.c.authorities(b.unit.ref, KindSecret, name)
	if err != nil {
		a.close(annotationInvalid, err.Error())
		return
	}
	b.options.clientCAs, b.options.forceTLS = pool, true
}
