package gateway

import (
	"crypto/x509"

	"github.com/fairway-net/fairway/internal/api"
)

// options are the annotations of an Ingress with the objects that they name.
type options struct {
	Annotations
	backendTLS *BackendTLS // not nil: TLS to the backends
	clientCAs  *x509.CertPool
}

// apply writes the options into a rule.
func (o *options) apply(r *Rule) {
	r.Filters, r.Session, r.Retry, r.HashBy = o.Filters, o.Session, o.Retry, o.HashBy
	r.ConnectTimeout, r.ReadTimeout, r.SendTimeout = o.ConnectTimeout, o.ReadTimeout, o.SendTimeout
}

// applyBackend writes how to speak to a backend.
func (o *options) applyBackend(b *Backend) {
	if o.Protocol != HTTP1 {
		b.Protocol = o.Protocol
	}
	if o.backendTLS == nil || b.TLS != nil {
		return
	}
	t := *o.backendTLS
	if t.ServerName == "" && !t.Insecure {
		t.ServerName = b.Service.Name.Name + "." + b.Service.Namespace + ".svc"
	}
	if o.Protocol == H2C {
		t.ALPN = []string{"h2"}
	}
	b.TLS = &t
}

// readOptions reads the annotations, and the objects that they name.
func (b *ingressBuild) readOptions() {
	b.options.Annotations = *ReadAnnotations(b.o)
	b.resolveBackendTLS()
	b.resolveAuth()
	b.resolveClientCAs()
	b.resolveHeaders()
	b.resolveMirror()
	for _, n := range b.options.Notes {
		b.problem(n.Reason, "%s: %s", n.Annotation, n.Text)
	}
}

// mayUse reports whether the Ingress may use a Secret. A Secret of another namespace needs a ReferenceGrant. Without it,
// the annotation closes the Ingress.
func (b *ingressBuild) mayUse(annotation string, secret api.Name) bool {
	if b.c.allowed(b.unit.ref, b.unit.ref, KindSecret, secret) {
		return true
	}
	b.options.close(annotation, reasonRefNotPermitted, "no ReferenceGrant in namespace "+secret.Namespace+" lets this Ingress use Secret "+secret.String())
	return false
}

func (b *ingressBuild) resolveBackendTLS() {
	spec := b.options.BackendTLS
	if spec == nil {
		return
	}
	t := &BackendTLS{ServerName: spec.ServerName, Insecure: spec.Insecure}
	b.options.backendTLS = t
	const key = "proxy-ssl-secret"
	if spec.Secret == (api.Name{}) || !b.mayUse(key, spec.Secret) {
		return
	}
	if cert, err := b.c.certificate(b.unit.ref, spec.Secret); err == nil {
		t.Certificate = cert
	}
	pool, err := b.c.authorities(b.unit.ref, KindSecret, spec.Secret)
	switch {
	case err == nil:
		t.Roots = pool
	case !t.Insecure:
		b.options.close(key, annotationInvalid, err.Error())
	}
}

// resolveAuth reads the users' Secret, and checks the auth server's URL. What cannot be read closes the Ingress.
func (b *ingressBuild) resolveAuth() {
	if a := b.options.BasicAuth; a != nil && b.mayUse("auth-secret", a.Secret) {
		auth, err := b.c.basicAuth(b.unit.ref, b.unit.ref, a.Secret, a.Kind, a.Realm)
		if err != nil {
			b.options.close("auth-type", annotationInvalid, err.Error())
		}
		b.options.Filters.BasicAuth = auth
	}
	if f := b.options.Filters.ForwardAuth; f != nil && !variableHost(f.URL) {
		if err := b.c.checkAuthURL(b.unit.ref, b.unit.ref, f.URL); err != nil {
			b.options.close("auth-url", annotationInvalid, err.Error())
		}
	}
}

func (b *ingressBuild) resolveClientCAs() {
	const key = "auth-tls-secret"
	if name := b.options.ClientCAs; name != (api.Name{}) && b.mayUse(key, name) {
		pool, err := b.c.authorities(b.unit.ref, KindSecret, name)
		if err != nil {
			b.options.close(key, annotationInvalid, err.Error())
		}
		b.options.clientCAs = pool
	}
}

// resolveHeaders reads a ConfigMap with headers for answers.
func (b *ingressBuild) resolveHeaders() {
	const key = "custom-headers"
	name := b.options.Headers
	if name == (api.Name{}) {
		return
	}
	if !b.c.allowed(b.unit.ref, b.unit.ref, KindConfigMap, name) {
		b.options.note(key, reasonRefNotPermitted, "no ReferenceGrant in namespace %s lets this Ingress use ConfigMap %s", name.Namespace, name)
		return
	}
	m, _ := b.c.read(b.unit.ref, KindConfigMap, name).(*ConfigMap)
	if m == nil {
		b.options.note(key, annotationInvalid, "ConfigMap %s %v", name, errNoObject)
		return
	}
	change := HeadersOf(m.Data)
	if text := change.fault(); text != "" {
		b.options.note(key, annotationInvalid, "ConfigMap %s: %s", name, text)
		return
	}
	b.options.Filters.ResponseHeaders = change
}

func (b *ingressBuild) resolveMirror() {
	m := b.options.Mirror
	if m == nil {
		return
	}
	var f faults
	ref := ObjectRef{GroupKind: GroupKind{Kind: string(KindService)}, Namespace: m.Service.Namespace, Name: m.Service.Name, Port: m.Port}
	backend := b.c.backend(b.unit.ref, ref, 1, &f)
	if backend.Refused != "" {
		b.options.note("mirror-target", f.unresolved, "%s", f.text)
		return
	}
	b.options.Filters.Mirrors = []Mirror{{Backend: backend, Numerator: 1, Denominator: 1, Path: m.Path}}
}
