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
	var known []string
	for k, group := range knownAnnotations {
		if group.Fate == AnnotationObeyed {
			known = append(known, k)
		}
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
	a.Filters.MaxBody = n * unit
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
		a.shut(annotationInvalid, cmp.Or(errText(err), "it names no clients"))
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
	a.AppRoot = a.value
}

// validValue reports whether a text can be part of a header.
func validValue(s string) bool { return !strings.ContainsAny(s, "\r\n\x00") }

func readBackendProtocol(a annotation) {
	switch strings.ToUpper(a.value) {
	case "HTTP", "AUTO_HTTP":
	case "HTTPS":
		a.BackendTLS = &IngressBackendTLS{}
	case "GRPC":
		a.Protocol = H2C
	case "GRPCS":
		a.Protocol, a.BackendTLS = H2C, &IngressBackendTLS{}
	default:
		a.invalid("use HTTP, HTTPS, GRPC or GRPCS")
		a.Closed = cmp.Or(a.Closed, "backend-protocol "+a.value+" is not supported")
	}
}

// readProxySSL reads how to check the backends' certificates. Without proxy-ssl-verify, any certificate is accepted, as in
// ingress-nginx.
func (r *annotationReading) readProxySSL() {
	t := r.BackendTLS
	if t == nil {
		return
	}
	t.Insecure = r.get("proxy-ssl-verify") != "on"
	if r.get("proxy-ssl-server-name") == "on" || !t.Insecure {
		t.ServerName = r.get("proxy-ssl-name")
	}
	if secret := r.get("proxy-ssl-secret"); secret != "" {
		t.Secret = r.named(secret)
	}
}

// HeadersOf returns headers to set, sorted by name.
func HeadersOf(data map[string]string) *HeaderChange {
	change := &HeaderChange{}
	for k, v := range data {
		change.Set = append(change.Set, Header{canonicalName(k), v})
	}
	slices.SortFunc(change.Set, func(x, y Header) int { return strings.Compare(x.Name, y.Name) })
	return change
}

func readForwardedPrefix(a annotation) {
	if !validValue(a.value) {
		a.invalid("write a path")
		return
	}
	a.Filters.RequestHeaders = &HeaderChange{Set: []Header{{"X-Forwarded-Prefix", a.value}}}
}

func (a annotation) rewrite() *Rewrite {
	if a.Filters.Rewrite == nil {
		a.Filters.Rewrite = &Rewrite{}
	}
	return a.Filters.Rewrite
}

func readRewriteTarget(a annotation) {
	if !validValue(a.value) || a.value == "" || variable(a.value, "") {
		a.invalid("write a path; only $1 to $9 are replaced")
		a.Closed = cmp.Or(a.Closed, "rewrite-target cannot be read")
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
		a.Aliases = append(a.Aliases, lower(alias))
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
func (r *annotationReading) readRedirects() {
	for _, kind := range []struct {
		key      string
		fallback int
	}{{"permanent-redirect", 301}, {"temporal-redirect", 302}} {
		target := r.get(kind.key)
		if target == "" {
			continue
		}
		a := annotation{r, kind.key, target}
		if !validValue(target) || variable(target, "request_uri", "uri", "host", "scheme", "args", "is_args") || redirectScheme(target) {
			a.invalid("write a URL of http or https")
			r.Closed = cmp.Or(r.Closed, kind.key+" cannot be read")
			continue
		}
		code := kind.fallback
		if text := r.get(kind.key + "-code"); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 300 || n > 308 {
				annotation{r, kind.key + "-code", text}.invalid("write a status from 300 to 308")
			} else {
				code = n
			}
		}
		r.Filters.Redirect = &Redirect{URL: target, Code: code}
	}
}

// redirectScheme reports whether a target has a scheme other than http and https.
func redirectScheme(target string) bool {
	scheme, _, ok := strings.Cut(target, ":")
	return ok && !strings.ContainsAny(scheme, "/$?#") && scheme != "http" && scheme != "https"
}

// readCORS reads the cors annotations with the defaults of ingress-nginx.
func (r *annotationReading) readCORS() {
	if r.get("enable-cors") != "true" {
		return
	}
	or := func(key, fallback string) []string { return split(cmp.Or(r.get("cors-"+key), fallback)) }
	c := &CORS{
		Origins:     or("allow-origin", "*"),
		Methods:     or("allow-methods", "GET, PUT, POST, DELETE, PATCH, OPTIONS"),
		Headers:     or("allow-headers", "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"),
		Expose:      or("expose-headers", ""),
		Credentials: r.get("cors-allow-credentials") != "false",
		MaxAge:      1728000 * time.Second,
	}
	if slices.Contains(c.Origins, "*") {
		// ingress-nginx answers "*" with credentials, which browsers refuse. A gateway that names the origin instead would let
		// every site read with the client's cookies.
		c.Credentials = false
	}
	if age := r.get("cors-max-age"); age != "" {
		annotation{r, "cors-max-age", age}.readSeconds(&c.MaxAge)
	}
	for _, values := range [][]string{c.Origins, c.Methods, c.Headers, c.Expose} {
		for _, v := range values {
			if !validValue(v) {
				annotation{r, "enable-cors", v}.invalid("remove the line break")
				return
			}
		}
	}
	r.Filters.CORS = c
}

// readAffinity reads the session cookie.
func (r *annotationReading) readAffinity() {
	switch affinity := r.get("affinity"); affinity {
	case "":
		return
	case "cookie":
	default:
		annotation{r, "affinity", affinity}.invalid("only cookie is supported")
		return
	}
	s := &Session{
		Name: cmp.Or(r.get("session-cookie-name"), "INGRESSCOOKIE"), Path: cmp.Or(r.get("session-cookie-path"), "/"),
		SameSite: r.get("session-cookie-samesite"), Secure: r.get("session-cookie-secure") == "true",
		Balanced: r.get("affinity-mode") != "persistent",
	}
	for _, key := range []string{"session-cookie-expires", "session-cookie-max-age"} {
		if v := r.get(key); v != "" {
			annotation{r, key, v}.readSeconds(&s.Lifetime)
		}
	}
	if !validHeaderName(s.Name) || !validValue(s.Path) || strings.ContainsAny(s.Path+s.SameSite, ";,") {
		annotation{r, "session-cookie-name", s.Name}.invalid("write a cookie's name and path")
		return
	}
	r.Session = s
}

// readLimits reads the limits of requests and connections. nginx lets burst-multiplier times the rate pass at once.
func readLimits(a annotation) {
	n, err := strconv.ParseUint(a.value, 10, 31)
	if err != nil {
		a.shut(annotationInvalid, fmt.Sprintf("%q is no number", api.Cut(a.value, 100)))
		return
	}
	if n == 0 {
		return
	}
	l := a.Filters.Limits
	if l == nil {
		l = &Limits{}
		a.Filters.Limits = l
		for _, key := range []string{"limit-whitelist", "limit-allowlist"} {
			exempt, err := prefixes(split(a.get(key)))
			if err != nil {
				a.note(key, annotationInvalid, "%v", err)
			}
			l.Exempt = append(l.Exempt, exempt...)
		}
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
		a.note(a.key, string(AnnotationUnsupported), "limit-rpm and limit-rps together are not supported; the lower rate counts")
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
	a.Retry = r
}

func readHashBy(a annotation) {
	if variable(a.value, "remote_addr", "request_uri", "uri", "host", "http_", "arg_", "cookie_", "args") && !hashVariable(a.value) {
		a.invalid("use $remote_addr, $request_uri, $uri, $host, $http_NAME, $arg_NAME or $cookie_NAME")
		return
	}
	a.HashBy = a.value
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
		a.note(a.key, string(AnnotationUnsupported), "only a Service is supported [write http://NAME.NAMESPACE.svc.cluster.local$request_uri]")
		return
	}
	port, _ := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	a.Mirror = &IngressMirror{Service: api.Name{Namespace: labels[1], Name: labels[0]}, Port: uint16(port)}
	if target == a.value {
		a.Mirror.Path = u.Path
	}
}

// readAuth reads basic authentication, forward authentication and clients' certificates. Whatever cannot be read closes
// the Ingress.
func (r *annotationReading) readAuth() {
	if a := r.at("auth-type"); a.value == "basic" {
		r.BasicAuth = &IngressAuth{Secret: r.named(r.get("auth-secret")), Kind: r.get("auth-secret-type"), Realm: r.get("auth-realm")}
	} else if a.value != "" {
		a.shut(string(AnnotationUnsupported), a.value+" is not supported [use basic]")
	}
	if a := r.at("auth-url"); a.value != "" {
		a.readForwardAuth()
	}
	if secret := r.get("auth-tls-secret"); secret != "" {
		r.readClientCAs(secret)
	}
}

// authVariables are the variables of nginx in the URLs of forward authentication.
var authVariables = []string{"host", "scheme", "request_uri", "escaped_request_uri", "uri", "http_host"}

func (a annotation) readForwardAuth() {
	signIn := a.get("auth-signin")
	if variable(a.value, authVariables...) || variable(signIn, authVariables...) || !validValue(a.value+signIn) {
		a.shut(annotationInvalid, "a variable in the URL is not known")
		return
	}
	f := &ForwardAuth{URL: a.value, Method: a.get("auth-method"), SignIn: signIn}
	for _, h := range split(a.get("auth-response-headers")) {
		if validHeaderName(h) {
			f.Headers = append(f.Headers, canonicalName(h))
		}
	}
	a.Filters.ForwardAuth = f
}

// variableHost reports whether the host of a URL is a variable of nginx.
func variableHost(text string) bool {
	u, err := url.Parse(text)
	return err == nil && strings.HasPrefix(u.Host, "$")
}

func (r *annotationReading) readClientCAs(secret string) {
	switch a := r.at("auth-tls-verify-client"); a.value {
	case "off":
		return
	case "", "on":
	default:
		a.note(a.key, string(AnnotationUnsupported), "%s is not supported; clients need a certificate", a.value)
	}
	r.ClientCAs, r.ForceTLS = r.named(secret), true
}
