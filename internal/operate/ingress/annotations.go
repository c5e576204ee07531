package ingress

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/text"
)

// prefix begins the annotations of ingress-nginx.
const prefix = "nginx.ingress.kubernetes.io/"

// A meaning is what the annotations of one Ingress ask for.
type meaning struct {
	filters                       []gatewayv1.HTTPRouteFilter
	redirect                      *gatewayv1.HTTPRequestRedirectFilter // answers all requests
	appRoot                       string
	upstreamHost                  string
	rewriteTarget                 string
	regex                         bool
	passthrough                   bool
	aliases                       []string
	fromToWWW                     bool
	sslRedirect, forceSSLRedirect bool
	protocol                      string // HTTP, HTTPS, GRPC, GRPCS
	serverName                    string // of the backend's certificate
	verify                        bool
	timeouts                      *gatewayv1.HTTPRouteTimeouts
	policy                        RoutePolicySpec
}

// needsPolicy reports whether the Ingress needs a RoutePolicy.
func (m *meaning) needsPolicy() bool {
	p := &m.policy
	return p.Clients != nil || p.RateLimit != nil || p.BasicAuth != nil || p.ForwardAuth != nil || p.MaxBodySize != "" || p.AccessLog != nil ||
		p.Session != nil || p.HashBy != "" || p.Timeouts != nil || p.Retry != nil
}

// A reader reads the annotations of one Ingress.
type reader struct {
	*migration
	*meaning
	g *networkingv1.Ingress
}

// get returns the value of another annotation of ingress-nginx.
func (r *reader) get(key string) string { return r.g.Annotations[prefix+key] }

// wrong notes that a value cannot be read.
func (r *reader) wrong(key, value, want string) {
	r.note(r.g, Lost, key, "%q is not %s", value, want)
}

// read reads all annotations. The order of their names makes the notes' order.
func (m *migration) read(g *networkingv1.Ingress) *meaning {
	r := &reader{m, &meaning{sslRedirect: true, protocol: "HTTP"}, g}
	for _, full := range slices.Sorted(maps.Keys(g.Annotations)) {
		key, ours := strings.CutPrefix(full, prefix)
		if !ours {
			continue
		}
		value := strings.TrimSpace(g.Annotations[full])
		switch {
		case annotations[key] != nil:
			annotations[key](r, key, value)
		case needless[key] != "":
			r.note(g, Needless, key, "%s", needless[key])
		case refused[key] != "":
			r.note(g, Lost, key, "%s", refused[key])
		default:
			r.note(g, Lost, key, "it is not known%s", suggestion(key))
		}
	}
	r.closing()
	return r.meaning
}

// suggestion names the annotation that was probably meant.
func suggestion(key string) string {
	if s := text.Closest(key, slices.Sorted(maps.Keys(annotations))); s != "" {
		return "; did you mean " + s + "?"
	}
	return ""
}

// closing notes defaults of ingress-nginx that a route does not have.
func (r *reader) closing() {
	if r.policy.MaxBodySize == "" && r.get("proxy-body-size") == "" {
		r.policy.MaxBodySize = "1Mi" // proxy-body-size of the controller
	}
	if r.policy.MaxBodySize == "0" {
		r.policy.MaxBodySize = ""
	}
}

// annotations says how each annotation is translated. Annotations that belong to another one are read with it and have an
// entry that does nothing.
var annotations = map[string]func(r *reader, key, value string){
	"app-root":       func(r *reader, _, v string) { r.appRoot = v },
	"upstream-vhost": func(r *reader, _, v string) { r.upstreamHost = v },
	"rewrite-target": func(r *reader, _, v string) { r.rewriteTarget = v },
	"upstream-hash-by": func(r *reader, key, v string) {
		r.policy.HashBy = r.form(key, v, freeForm, "a text of at most 256 letters")
	},
	"server-alias":              func(r *reader, _, v string) { r.aliases = list(v) },
	"use-regex":                 boolean(func(r *reader, on bool) { r.regex = on }),
	"ssl-passthrough":           boolean(func(r *reader, on bool) { r.passthrough = on }),
	"from-to-www-redirect":      boolean(func(r *reader, on bool) { r.fromToWWW = on }),
	"ssl-redirect":              boolean(func(r *reader, on bool) { r.sslRedirect = on && r.sslRedirect || r.forceSSLRedirect }),
	"force-ssl-redirect":        boolean(func(r *reader, on bool) { r.forceSSLRedirect, r.sslRedirect = on, r.sslRedirect || on }),
	"enable-access-log":         boolean(func(r *reader, on bool) { r.policy.AccessLog = &on }),
	"enable-cors":               boolean((*reader).cors),
	"cors-allow-origin":         with("enable-cors"),
	"cors-allow-methods":        with("enable-cors"),
	"cors-allow-headers":        with("enable-cors"),
	"cors-allow-credentials":    with("enable-cors"),
	"cors-expose-headers":       with("enable-cors"),
	"cors-max-age":              with("enable-cors"),
	"custom-headers":            (*reader).customHeaders,
	"x-forwarded-prefix":        (*reader).forwardedPrefix,
	"permanent-redirect":        (*reader).redirectTo,
	"permanent-redirect-code":   with("permanent-redirect"),
	"temporal-redirect":         (*reader).redirectTo,
	"temporal-redirect-code":    with("temporal-redirect"),
	"proxy-body-size":           (*reader).bodySize,
	"proxy-connect-timeout":     (*reader).stepTimeout,
	"proxy-read-timeout":        (*reader).stepTimeout,
	"proxy-send-timeout":        (*reader).stepTimeout,
	"proxy-next-upstream":       (*reader).retry,
	"proxy-next-upstream-tries": with("proxy-next-upstream"),
	"backend-protocol":          func(r *reader, _, v string) { r.protocol = strings.ToUpper(v) },
	"proxy-ssl-name":            func(r *reader, _, v string) { r.serverName = v },
	"proxy-ssl-verify":          func(r *reader, _, v string) { r.verify = v == "on" },
	"proxy-ssl-server-name":     with("backend-protocol"),
	"proxy-ssl-secret": func(r *reader, key, v string) {
		r.note(r.g, Lost, key, "Secret %s: put its ca.crt into a ConfigMap and name it in the BackendTLSPolicy; a client certificate is named in the Gateway", v)
	},
	"whitelist-source-range": (*reader).clients,
	"allowlist-source-range": (*reader).clients,
	"denylist-source-range":  (*reader).clients,
	"auth-type":              (*reader).basicAuth,
	"auth-secret":            with("auth-type"),
	"auth-secret-type":       with("auth-type"),
	"auth-realm":             with("auth-type"),
	"auth-url":               (*reader).forwardAuth,
	"auth-method":            with("auth-url"),
	"auth-signin":            with("auth-url"),
	"auth-response-headers":  with("auth-url"),
	"limit-rps":              (*reader).limits,
	"limit-rpm":              (*reader).limits,
	"limit-connections":      (*reader).limits,
	"limit-burst-multiplier": with("limit-rps, limit-rpm"),
	"limit-whitelist":        with("limit-rps, limit-rpm"),
	"affinity":               (*reader).session,
	"affinity-mode":          with("affinity"),
	"session-cookie-name":    with("affinity"),
	"session-cookie-expires": with("affinity"),
	"session-cookie-max-age": with("affinity"),
	"session-cookie-path":    with("affinity"), "session-cookie-samesite": with("affinity"), "session-cookie-secure": with("affinity"),
	"canary": with(""), "canary-weight": with("canary"), "canary-weight-total": with("canary"), "canary-by-header": with("canary"),
	"canary-by-header-value": with("canary"), "canary-by-header-pattern": with("canary"), "canary-by-cookie": with("canary"),
}

// needless are annotations that set what a gateway does anyhow, or what it does not have and does not need.
var needless = map[string]string{
	"client-body-buffer-size":     "bodies are streamed",
	"proxy-buffering":             "answers are streamed when they are long",
	"proxy-buffer-size":           "headers of an answer may have 64 KiB",
	"proxy-buffers-number":        "answers are streamed when they are long",
	"proxy-busy-buffers-size":     "answers are streamed when they are long",
	"proxy-max-temp-file-size":    "nothing is written to files",
	"proxy-request-buffering":     "bodies are streamed",
	"proxy-http-version":          "HTTP/1.1 is the default, HTTP/2 comes by appProtocol",
	"service-upstream":            "endpoints are used directly; a pod that ends gets no new request",
	"enable-rewrite-log":          "fairway explain shows rewrites",
	"http2-push-preload":          "browsers have removed HTTP/2 push",
	"connection-proxy-header":     "connections to backends are kept open",
	"preserve-trailing-slash":     "a path keeps its final slash",
	"proxy-next-upstream-timeout": "the request's timeout bounds all attempts",
}

// refused are annotations without an equivalent, and why.
var refused = map[string]string{
	"configuration-snippet": "snippets are text of another program's configuration; look at its lines one by one",
	"server-snippet":        "snippets are text of another program's configuration; look at its lines one by one",
	"stream-snippet":        "snippets are text of another program's configuration; look at its lines one by one",
	"auth-snippet":          "snippets are text of another program's configuration; look at its lines one by one",
	"modsecurity-snippet":   "there is no web application firewall", "enable-modsecurity": "there is no web application firewall",
	"enable-owasp-core-rules": "there is no web application firewall", "modsecurity-transaction-id": "there is no web application firewall",
	"enable-opentelemetry": "headers of a trace are passed on, spans are not made", "opentelemetry-trust-incoming-span": "headers of a trace are passed on, spans are not made",
	"auth-tls-secret":                          "clients' certificates are checked for a whole listener: set tls.frontend in the Gateway",
	"auth-tls-verify-client":                   "clients' certificates are checked for a whole listener: set tls.frontend in the Gateway",
	"auth-tls-verify-depth":                    "chains of any length are accepted",
	"auth-tls-error-page":                      "a failed handshake has no page",
	"auth-tls-pass-certificate-to-upstream":    "clients' certificates are not passed on",
	"auth-tls-match-cn":                        "subjects of clients' certificates are not compared",
	"auth-cache-key":                           "answers of the auth server are not cached",
	"auth-cache-duration":                      "answers of the auth server are not cached",
	"auth-keepalive":                           "connections to the auth server are always kept",
	"auth-proxy-set-headers":                   "the auth server gets the request's headers",
	"auth-request-redirect":                    "the auth server gets X-Forwarded-Uri",
	"auth-always-set-cookie":                   "cookies of the auth server go to the client with a refusal only",
	"custom-http-errors":                       "errors of a backend are passed on as they are",
	"default-backend":                          "requests to a Service without endpoints get 503",
	"disable-proxy-intercept-errors":           "errors of a backend are passed on as they are",
	"satisfy":                                  "all checks have to pass",
	"limit-rate":                               "bytes a second are not limited",
	"limit-rate-after":                         "bytes a second are not limited",
	"load-balance":                             "the Service's annotation fairway.net/balance chooses the algorithm",
	"upstream-hash-by-subset":                  "hashing is over all endpoints",
	"upstream-hash-by-subset-size":             "hashing is over all endpoints",
	"mirror-target":                            "add a RequestMirror filter with a Service as its backend",
	"mirror-request-body":                      "a mirror gets the body",
	"mirror-host":                              "a mirror gets the request's host",
	"proxy-cookie-domain":                      "cookies of a backend are passed on as they are",
	"proxy-cookie-path":                        "cookies of a backend are passed on as they are",
	"proxy-redirect-from":                      "Location of a backend is passed on as it is",
	"proxy-redirect-to":                        "Location of a backend is passed on as it is",
	"proxy-ssl-ciphers":                        "Go's ciphers are used",
	"proxy-ssl-protocols":                      "TLS 1.2 and 1.3 are used",
	"proxy-ssl-verify-depth":                   "chains of any length are accepted",
	"ssl-ciphers":                              "Go's ciphers are used",
	"ssl-prefer-server-ciphers":                "Go's ciphers are used",
	"session-cookie-domain":                    "the cookie is for the request's host",
	"session-cookie-change-on-failure":         "the cookie changes when its endpoint is gone",
	"session-cookie-conditional-samesite-none": "set session-cookie-samesite",
	"affinity-canary-behavior":                 "a session keeps its endpoint, not its version",
}

// with marks an annotation that is read together with another one. Without that one it does nothing, in ingress-nginx too.
func with(string) func(*reader, string, string) { return func(*reader, string, string) {} }

// boolean reads true and false.
func boolean(set func(r *reader, on bool)) func(*reader, string, string) {
	return func(r *reader, key, value string) {
		on, err := strconv.ParseBool(value)
		if err != nil {
			r.wrong(key, value, "true or false")
			return
		}
		set(r, on)
	}
}

// list splits at commas.
func list(value string) []string {
	var all []string
	for v := range strings.SplitSeq(value, ",") {
		if v = strings.TrimSpace(v); v != "" {
			all = append(all, v)
		}
	}
	return all
}
