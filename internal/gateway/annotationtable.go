package gateway

import (
	"slices"
	"strings"
)

// A Fate is what Fairway does with an annotation of ingress-nginx.
type Fate string

// The fates. The text is the reason of the event.
const (
	AnnotationObeyed      Fate = ""
	AnnotationNeedless    Fate = "AnnotationWithoutEffect" // what it asks for is always so, or never needed
	AnnotationUnsupported Fate = "AnnotationUnsupported"   // ingress-nginx has it
	AnnotationClosing     Fate = "AnnotationClosing"       // not supported, and keeps requests out: they get 500
	AnnotationRefused     Fate = "AnnotationRefused"       // it is text of a configuration language
)

// An AnnotationGroup is a group of annotations with one fate.
type AnnotationGroup struct {
	Names string // with spaces, without prefix
	Fate  Fate
	Text  string // what it does, or why it does nothing
}

// AnnotationGroups returns what is known of the annotations of ingress-nginx, for people and for documentation.
func AnnotationGroups() []AnnotationGroup { return slices.Clone(annotationGroups) }

// annotationGroups has each annotation that ingress-nginx documents, once. Refused annotations are found by their words.
var annotationGroups = []AnnotationGroup{
	{"rewrite-target", "", "the path for the backend; `$1` to `$9` are groups of the rule's path, which becomes a regular expression"},
	{"use-regex", "", "paths are regular expressions without case, from the path's beginning"},
	{"app-root", "", "`/` redirects there (302)"},
	{"upstream-vhost", "", "the host for the backend"},
	{"x-forwarded-prefix", "", "the header `X-Forwarded-Prefix` for the backend"},
	{"custom-headers", "", "headers of answers, from a ConfigMap"},
	{"server-alias", "", "more hosts, without regular expressions"},
	{"from-to-www-redirect", "", "`www.HOST` redirects to `HOST`, or the other way round (308)"},
	{"permanent-redirect permanent-redirect-code temporal-redirect temporal-redirect-code", "", "all paths redirect there (301, 302)"},
	{"ssl-redirect", "", "`http` redirects to `https` if the host has a certificate: on unless `false` (308)"},
	{"force-ssl-redirect", "", "`http` redirects to `https`, also without a certificate (308)"},
	{"ssl-passthrough", "", "TLS connections go to the first backend as they are"},
	{"backend-protocol", "", "`HTTP`, `HTTPS`, `GRPC` or `GRPCS`; others get 500"},
	{"proxy-ssl-name proxy-ssl-secret proxy-ssl-server-name proxy-ssl-verify", "", "TLS to backends; certificates are only checked with `proxy-ssl-verify: \"on\"`"},
	{"enable-cors cors-allow-origin cors-allow-methods cors-allow-headers cors-allow-credentials cors-expose-headers cors-max-age", "",
		"answers preflight requests, and marks answers; origin `*` goes without credentials, which browsers refuse with it"},
	{"canary canary-weight canary-weight-total canary-by-header canary-by-header-value canary-by-header-pattern canary-by-cookie", "",
		"some requests go to this Ingress' backend: first by header, then by cookie, then by weight"},
	{"affinity affinity-mode session-cookie-name session-cookie-path session-cookie-expires session-cookie-max-age session-cookie-samesite session-cookie-secure", "",
		"a cookie keeps a client at its endpoint; only `affinity: cookie`"},
	{"upstream-hash-by", "", "requests with the same value of one variable go to the same endpoint"},
	{"mirror-target", "", "a Service gets a copy of each request"},
	{"whitelist-source-range allowlist-source-range denylist-source-range", "", "clients that may, or may not; others get 403"},
	{"limit-rps limit-rpm limit-connections limit-burst-multiplier limit-whitelist limit-allowlist", "", "limits for each client in each gateway pod; 503 above them"},
	{"auth-type auth-secret auth-secret-type auth-realm", "", "name and password; only `auth-type: basic`"},
	{"auth-url auth-method auth-signin auth-response-headers", "", "another server decides; without an answer of it requests get 500"},
	{"auth-tls-secret auth-tls-verify-client", "", "clients need a certificate of these CAs"},
	{"proxy-body-size", "", "a longer body gets 413; without the annotation `1m`"},
	{"proxy-connect-timeout proxy-read-timeout proxy-send-timeout", "", "limits for the steps of a request to a backend"},
	{"proxy-next-upstream proxy-next-upstream-tries", "", "when a request is sent again to another endpoint"},
	{"enable-access-log", "", "whether requests are logged"},

	{"client-body-buffer-size proxy-request-buffering", AnnotationNeedless, "bodies of requests are streamed"},
	{"proxy-buffering proxy-buffers-number proxy-busy-buffers-size proxy-max-temp-file-size", AnnotationNeedless, "long answers are streamed, and nothing is written to files"},
	{"proxy-buffer-size", AnnotationNeedless, "headers of an answer may have 64 KiB"},
	{"proxy-http-version", AnnotationNeedless, "backends are spoken to in HTTP/1.1, or in HTTP/2 by backend-protocol or appProtocol"},
	{"connection-proxy-header", AnnotationNeedless, "connections to backends are kept open"},
	{"service-upstream", AnnotationNeedless, "the gateway balances endpoints itself; a pod that ends gets no new request"},
	{"preserve-trailing-slash", AnnotationNeedless, "a path keeps its final slash"},
	{"http2-push-preload", AnnotationNeedless, "browsers have removed HTTP/2 push"},
	{"enable-rewrite-log", AnnotationNeedless, "fairway explain shows rewrites"},
	{"grpc-backend", AnnotationNeedless, "backend-protocol replaces it"},
	{"auth-cache-duration", AnnotationNeedless, "each request is asked for"},
	{"auth-keepalive auth-keepalive-requests auth-keepalive-share-vars auth-keepalive-timeout", AnnotationNeedless, "connections to the auth server are kept"},
	{"proxy-ssl-protocols proxy-ssl-ciphers", AnnotationNeedless, "TLS 1.2 and 1.3 are used, with Go's ciphers"},
	{"proxy-ssl-verify-depth auth-tls-verify-depth", AnnotationNeedless, "chains of certificates may have any length"},

	{"auth-tls-match-cn", AnnotationClosing, "names in clients' certificates are not compared"},
	{"global-rate-limit global-rate-limit-window global-rate-limit-key global-rate-limit-ignored-cidrs", AnnotationClosing,
		"gateway pods do not count together; use limit-rps"},

	{"affinity-canary-behavior", AnnotationUnsupported, "a session keeps its endpoint, not its version"},
	{"session-cookie-domain", AnnotationUnsupported, "the cookie is for the request's host"},
	{"session-cookie-change-on-failure", AnnotationUnsupported, "the cookie changes when its endpoint is gone"},
	{"session-cookie-conditional-samesite-none", AnnotationUnsupported, "set session-cookie-samesite"},
	{"upstream-hash-by-subset upstream-hash-by-subset-size", AnnotationUnsupported, "hashing is over all endpoints"},
	{"load-balance", AnnotationUnsupported, "the Service's annotation fairway.net/balance chooses the algorithm"},
	{"default-backend", AnnotationUnsupported, "requests to a Service without endpoints get 503"},
	{"custom-http-errors disable-proxy-intercept-errors", AnnotationUnsupported, "errors of a backend are passed on as they are"},
	{"proxy-redirect-from proxy-redirect-to", AnnotationUnsupported, "the header Location of a backend is passed on as it is"},
	{"proxy-cookie-domain proxy-cookie-path", AnnotationUnsupported, "cookies of a backend are passed on as they are"},
	{"proxy-next-upstream-timeout", AnnotationUnsupported, "the attempts have no common limit"},
	{"proxy-host", AnnotationUnsupported, "use upstream-vhost"},
	{"limit-rate limit-rate-after", AnnotationUnsupported, "bytes a second are not limited"},
	{"custom-max-body-size", AnnotationUnsupported, "use proxy-body-size"},
	{"auth-cache-key", AnnotationUnsupported, "answers of the auth server are not cached"},
	{"auth-always-set-cookie", AnnotationUnsupported, "cookies of the auth server go to the client with a refusal only"},
	{"auth-proxy-set-headers", AnnotationUnsupported, "the auth server gets the request's headers"},
	{"auth-request-redirect auth-signin-redirect-param", AnnotationUnsupported, "the auth server gets X-Forwarded-Uri, the sign-in page gets rd"},
	{"auth-tls-error-page", AnnotationUnsupported, "a failed handshake has no page"},
	{"auth-tls-pass-certificate-to-upstream", AnnotationUnsupported, "clients' certificates are not passed on"},
	{"satisfy", AnnotationUnsupported, "all checks have to pass"},
	{"enable-global-auth", AnnotationUnsupported, "there is no global auth server; use auth-url"},
	{"mirror-request-body mirror-host", AnnotationUnsupported, "a mirror gets the body, and the request's host"},
	{"ssl-ciphers ssl-prefer-server-ciphers", AnnotationUnsupported, "Go's ciphers are used"},
	{"relative-redirects base-url-scheme", AnnotationUnsupported, "redirects have scheme and host"},
	{"x-forwarded-for-header", AnnotationUnsupported, "the header is X-Forwarded-For"},
	{"enable-influxdb influxdb-measurement influxdb-port influxdb-host influxdb-server-name", AnnotationUnsupported, "metrics are Prometheus'"},
	{"secure-verify-ca-secret", AnnotationUnsupported, "use proxy-ssl-secret"},

	{"*-snippet", AnnotationRefused, "a snippet is text of nginx' configuration, which a tenant must not write"},
	{"*modsecurity* *owasp*", AnnotationRefused, "there is no web application firewall"},
	{"*opentelemetry* *opentracing*", AnnotationRefused, "headers of a trace are passed on, spans are not made"},
	{"lua-*", AnnotationRefused, "there is no Lua"},
}

// knownAnnotations has the group of each name that is not refused.
var knownAnnotations = indexAnnotations()

func indexAnnotations() map[string]*AnnotationGroup {
	names := map[string]*AnnotationGroup{}
	for i := range annotationGroups {
		if g := &annotationGroups[i]; g.Fate != AnnotationRefused {
			for name := range strings.FieldsSeq(g.Names) {
				names[name] = g
			}
		}
	}
	return names
}

// groupOf returns what is known of an annotation; nil: nothing.
func groupOf(name string) *AnnotationGroup {
	if g := knownAnnotations[name]; g != nil {
		return g
	}
	for i := range annotationGroups {
		g := &annotationGroups[i]
		for word := range strings.FieldsSeq(g.Names) {
			if g.Fate == AnnotationRefused && strings.Contains(name, strings.Trim(word, "*")) {
				return g
			}
		}
	}
	return nil
}
