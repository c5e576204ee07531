package gateway

import (
	"crypto/x509"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// nginxPrefix is the prefix of the annotations of ingress-nginx.
const nginxPrefix = "nginx.ingress.kubernetes.io/"

// Reasons of Problems with annotations.
const (
	annotationUnknown     = "AnnotationUnknown"       // nobody knows it
	annotationUnsupported = "AnnotationUnsupported"   // ingress-nginx has it
	annotationRefused     = "AnnotationRefused"       // it is text of a configuration language
	annotationInvalid     = "AnnotationInvalid"       // its value cannot be read
	annotationNeedless    = "AnnotationWithoutEffect" // what it asks for is always so, or never needed
)

// defaultMaxBody is the bound of a request's body for Ingresses, as in ingress-nginx.
const defaultMaxBody = 1 << 20

// options are what an Ingress' annotations say.
type options struct {
	filters     Filters
	protocol    backendProtocol
	tlsRedirect bool // if the host has a certificate
	forceTLS    bool
	fromToWWW   bool
	appRoot     string
	useRegex    bool
	canary      bool
	passthrough bool
	aliases     []string
	session     *Session
	hashBy      string
	retry       *Retry
	clientCAs   *x509.CertPool
	// closed says why all rules of the Ingress answer with 500: an annotation that keeps requests out cannot be obeyed.
	closed                                   string
	connectTimeout, readTimeout, sendTimeout time.Duration
}

// backendProtocol is how to speak to the backends.
type backendProtocol struct {
	protocol Protocol
	tls      *BackendTLS
}

func (p backendProtocol) apply(b *Backend) {
	if p.protocol != HTTP1 {
		b.Protocol = p.protocol
	}
	if p.tls == nil || b.TLS != nil {
		return
	}
	t := *p.tls
	if t.ServerName == "" && !t.Insecure {
		t.ServerName = b.Service.Name.Name + "." + b.Service.Namespace + ".svc"
	}
	if p.protocol == H2C {
		t.ALPN = []string{"h2"}
	}
	b.TLS = &t
}

// apply writes the options into a rule.
func (o *options) apply(r *Rule) {
	r.Filters, r.Session, r.Retry, r.HashBy = o.filters, o.session, o.retry, o.hashBy
	r.ConnectTimeout, r.ReadTimeout, r.SendTimeout = o.connectTimeout, o.readTimeout, o.sendTimeout
}

// An annotation is one annotation while it is read.
type annotation struct {
	*ingressBuild
	key, value string // key without prefix
}

// invalid reports a value that cannot be read.
func (a annotation) invalid(advice string) {
	a.problem(annotationInvalid, "%s: %q cannot be read [%s]", a.key, api.Cut(a.value, 100), advice)
}

// close makes all rules of the Ingress answer with 500, because an annotation that keeps requests out cannot be obeyed.
func (a annotation) close(reason, text string) {
	a.problem(reason, "%s: %s; requests get 500, because the annotation keeps requests out", a.key, text)
	if a.options.closed == "" {
		a.options.closed = "annotation " + a.key + ": " + text
	}
}

// get returns another annotation of the Ingress.
func (b *ingressBuild) get(key string) string {
	return strings.TrimSpace(b.o.Annotations[nginxPrefix+key])
}

// readOptions reads all annotations, in the order of their names, so the problems are always in the same order.
func (b *ingressBuild) readOptions() {
	b.options.tlsRedirect = true
	b.options.filters.MaxBody = defaultMaxBody
	for _, key := range slices.Sorted(maps.Keys(b.o.Annotations)) {
		name, ours := strings.CutPrefix(key, nginxPrefix)
		if !ours {
			continue
		}
		a := annotation{b, name, strings.TrimSpace(b.o.Annotations[key])}
		switch read := annotationReaders[name]; {
		case read != nil:
			read(a)
		case refusedAnnotation(name):
			b.problem(annotationRefused, "%s is text of a configuration language, which a tenant must not write [see docs/gateway.md for what replaces it]", name)
		case needlessAnnotations[name]:
			b.problem(annotationNeedless, "%s has no effect", name)
		case closingAnnotations[name]:
			a.close(annotationUnsupported, "it is not supported")
		case unsupportedAnnotations[name]:
			b.problem(annotationUnsupported, "%s is not supported", name)
		default:
			b.problem(annotationUnknown, "%s is not known%s", name, suggestion(name))
		}
	}
	b.options.finish(b)
}

// finish joins annotations that work together.
func (o *options) finish(b *ingressBuild) {
	if o.protocol.tls != nil {
		b.readProxySSL()
	}
	b.readAuth()
	b.readRedirects()
	b.readCORS()
	b.readAffinity()
}

func refusedAnnotation(name string) bool {
	for _, word := range []string{"-snippet", "modsecurity", "opentelemetry", "opentracing", "lua-", "owasp"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

func canonicalName(name string) string {
	return textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
}

// set returns the set of the words of a text.
func set(words string) map[string]bool {
	all := map[string]bool{}
	for _, w := range strings.Fields(words) {
		all[w] = true
	}
	return all
}

// needlessAnnotations ask for what is always so: bodies are streamed in both directions, connections to backends are kept,
// the gateway balances endpoints itself.
var needlessAnnotations = set(`client-body-buffer-size proxy-buffering proxy-buffer-size proxy-buffers-number proxy-busy-buffers-size
	proxy-max-temp-file-size proxy-request-buffering service-upstream proxy-http-version http2-push-preload enable-rewrite-log
	connection-proxy-header auth-keepalive auth-keepalive-requests auth-keepalive-share-vars auth-keepalive-timeout
	proxy-ssl-protocols proxy-ssl-ciphers proxy-ssl-verify-depth auth-tls-verify-depth grpc-backend`)

// closingAnnotations keep requests out, and are not supported.
var closingAnnotations = set(`auth-tls-match-cn global-rate-limit global-rate-limit-window global-rate-limit-key global-rate-limit-ignored-cidrs`)

// unsupportedAnnotations are documented by ingress-nginx, and change nothing here.
var unsupportedAnnotations = set(`affinity-canary-behavior session-cookie-domain session-cookie-change-on-failure
	session-cookie-conditional-samesite-none upstream-hash-by-subset upstream-hash-by-subset-size load-balance default-backend
	custom-http-errors disable-proxy-intercept-errors proxy-redirect-from proxy-redirect-to proxy-cookie-domain proxy-cookie-path
	proxy-next-upstream-timeout limit-rate limit-rate-after auth-cache-key auth-always-set-cookie auth-proxy-set-headers
	auth-request-redirect auth-signin-redirect-param auth-tls-error-page auth-tls-pass-certificate-to-upstream satisfy
	enable-global-auth mirror-request-body mirror-host ssl-ciphers ssl-prefer-server-ciphers preserve-trailing-slash
	relative-redirects base-url-scheme x-forwarded-for-header enable-influxdb influxdb-measurement influxdb-port influxdb-host
	influxdb-server-name secure-verify-ca-secret custom-max-body-size proxy-host`)

// annotationReaders has the annotations that are obeyed.
var annotationReaders = map[string]func(annotation){
	"affinity": joined, "affinity-mode": joined, "session-cookie-name": joined, "session-cookie-expires": joined,
	"session-cookie-max-age": joined, "session-cookie-path": joined, "session-cookie-samesite": joined, "session-cookie-secure": joined,
	"enable-cors": joined, "cors-allow-origin": joined, "cors-allow-methods": joined, "cors-allow-headers": joined,
	"cors-allow-credentials": joined, "cors-expose-headers": joined, "cors-max-age": joined,
	"permanent-redirect": joined, "permanent-redirect-code": joined, "temporal-redirect": joined, "temporal-redirect-code": joined,
	"proxy-ssl-name": joined, "proxy-ssl-secret": joined, "proxy-ssl-server-name": joined, "proxy-ssl-verify": joined,
	"auth-type": joined, "auth-secret": joined, "auth-secret-type": joined, "auth-realm": joined,
	"auth-url": joined, "auth-signin": joined, "auth-method": joined, "auth-response-headers": joined, "auth-cache-duration": joined,
	"auth-tls-secret": joined, "auth-tls-verify-client": joined,
	"canary-by-header": joined, "canary-by-header-value": joined, "canary-by-header-pattern": joined, "canary-by-cookie": joined,
	"canary-weight": joined, "canary-weight-total": joined,

	"app-root": readAppRoot, "backend-protocol": readBackendProtocol,
	"canary":               func(a annotation) { a.readBool(&a.options.canary) },
	"from-to-www-redirect": func(a annotation) { a.readBool(&a.options.fromToWWW) },
	"ssl-redirect":         func(a annotation) { a.readBool(&a.options.tlsRedirect) },
	"force-ssl-redirect":   func(a annotation) { a.readBool(&a.options.forceTLS) },
	"ssl-passthrough":      func(a annotation) { a.readBool(&a.options.passthrough) },
	"use-regex":            func(a annotation) { a.readBool(&a.options.useRegex) },
	"enable-access-log": func(a annotation) {
		var on bool
		a.readBool(&on)
		a.options.filters.AccessLog = &on
	},
	"custom-headers": readCustomHeaders, "x-forwarded-prefix": readForwardedPrefix,
	"rewrite-target": readRewriteTarget, "upstream-vhost": readVhost, "server-alias": readAliases,
	"proxy-body-size":        readBodySize,
	"proxy-connect-timeout":  func(a annotation) { a.readSeconds(&a.options.connectTimeout) },
	"proxy-read-timeout":     func(a annotation) { a.readSeconds(&a.options.readTimeout) },
	"proxy-send-timeout":     func(a annotation) { a.readSeconds(&a.options.sendTimeout) },
	"whitelist-source-range": func(a annotation) { a.readPrefixes(&a.options.filters.Allow) },
	"allowlist-source-range": func(a annotation) { a.readPrefixes(&a.options.filters.Allow) },
	"denylist-source-range":  func(a annotation) { a.readPrefixes(&a.options.filters.Deny) },

	"limit-rps": readLimits, "limit-rpm": readLimits, "limit-connections": readLimits, "limit-burst-multiplier": joined,
	"limit-whitelist": joined, "limit-allowlist": joined,
	"proxy-next-upstream": readNextUpstream, "proxy-next-upstream-tries": joined,
	"upstream-hash-by": readHashBy, "mirror-target": readMirror,
}

// joined is the reader of an annotation that is read together with others.
func joined(annotation) {}

// readProxySSL reads how to check the backends' certificates. Without proxy-ssl-verify, any certificate is accepted, as in
// ingress-nginx.
func (b *ingressBuild) readProxySSL() {
	t := b.options.protocol.tls
	t.Insecure = b.get("proxy-ssl-verify") != "on"
	if b.get("proxy-ssl-server-name") == "on" || !t.Insecure {
		t.ServerName = b.get("proxy-ssl-name")
	}
	secret := b.get("proxy-ssl-secret")
	if secret == "" {
		return
	}
	a := annotation{b, "proxy-ssl-secret", secret}
	name, ok := a.secretName(secret)
	if !ok {
		return
	}
	if cert, err := b.c.certificate(b.unit.ref, name); err == nil {
		t.Certificate = cert
	}
	pool, err := b.c.authorities(b.unit.ref, KindSecret, name)
	switch {
	case err == nil:
		t.Roots = pool
	case !t.Insecure:
		a.close(annotationInvalid, err.Error())
	}
}

// named reads "namespace/name" or "name", which is of the Ingress' namespace.
func (b *ingressBuild) named(text string) api.Name {
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		return api.Name{Namespace: namespace, Name: name}
	}
	return api.Name{Namespace: b.o.Namespace, Name: text}
}

// secretName reads the name of a Secret. A Secret of another namespace needs a ReferenceGrant.
func (a annotation) secretName(text string) (api.Name, bool) {
	name := a.named(text)
	if !a.c.allowed(a.unit.ref, a.unit.ref, KindSecret, name) {
		a.close(reasonRefNotPermitted, "no ReferenceGrant in namespace "+name.Namespace+" lets this Ingress use Secret "+name.String())
		return name, false
	}
	return name, true
}
