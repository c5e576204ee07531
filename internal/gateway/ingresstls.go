package gateway

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// ingressTLS has the TLS settings of the Ingresses' hosts. It is immutable.
type ingressTLS struct {
	hosts    hosts[*hostTLS]
	fallback *tls.Certificate
}

// hostTLS is the TLS of one host of one Ingress.
type hostTLS struct {
	host        string
	route       Ref
	created     int64
	certificate *tls.Certificate
	clientCAs   *x509.CertPool
	passthrough []Backend
}

// handshake completes the answer for a handshake with an Ingress' host.
func (t *ingressTLS) handshake(h Handshake, serverName string) (Handshake, bool) {
	found, _, _, ok := t.hosts.next(serverName, -1)
	switch {
	case ok:
		h.Passthrough, h.ClientCAs = found.passthrough, found.clientCAs
		if cert := cmp.Or(found.certificate, t.fallback); cert != nil {
			h.Certificates = []*tls.Certificate{cert}
		}
		return h, h.Certificates != nil || h.Passthrough != nil
	case t.fallback != nil:
		h.Certificates = []*tls.Certificate{t.fallback}
		return h, true
	}
	return Handshake{}, false
}

// sameClients reports whether two hosts of Ingresses ask the same of clients. A client that has shown its certificate to
// one host must not reach another host that trusts other CAs.
func (l *listenerTable) sameClients(host, serverName string) bool {
	if l.ingress == nil {
		return true
	}
	a, _, _, _ := l.ingress.hosts.next(host, -1)
	b, _, _, _ := l.ingress.hosts.next(serverName, -1)
	return a.clients() == b.clients()
}

func (h *hostTLS) clients() *x509.CertPool {
	if h == nil {
		return nil
	}
	return h.clientCAs
}

// buildTLS adds the TLS of the Ingress' hosts. A host has the certificate of the spec.tls that names it, or else of the one
// without hosts.
func (b *ingressBuild) buildTLS() {
	if b.options.Passthrough {
		b.buildPassthrough()
		return
	}
	for _, host := range b.hosts {
		if host == "" {
			continue
		}
		t := &hostTLS{host: host, route: b.unit.ref, created: b.o.Created, clientCAs: b.options.clientCAs}
		if secret, ok := b.secretFor(host); ok {
			cert, err := b.c.certificate(b.unit.ref, api.Name{Namespace: b.o.Namespace, Name: secret})
			if err != nil {
				b.problem(reasonInvalidCertificate, "host %s: %v", host, err)
			}
			t.certificate = cert
		}
		if t.certificate != nil || t.clientCAs != nil {
			b.unit.tls = append(b.unit.tls, t)
		}
	}
}

// secretFor returns the Secret for a host of the Ingress, also for a host that an annotation adds.
func (b *ingressBuild) secretFor(host string) (secret string, ok bool) {
	names := []string{host}
	if slices.Contains(b.options.Aliases, host) && len(b.o.Rules) > 0 {
		names = append(names, lower(b.o.Rules[0].Host))
	}
	if b.options.FromToWWW {
		names = append(names, otherWWW(host))
	}
	for _, name := range names {
		if secret, ok := b.o.SecretFor(name); ok {
			return secret, true
		}
	}
	return "", false
}

// SecretFor returns the name of the Secret with the certificate of a host.
func (o *Ingress) SecretFor(host string) (secret string, ok bool) {
	patterns := 0
	for _, t := range o.TLS {
		for _, pattern := range t.Hosts {
			if patterns++; patterns > maxIngressPaths {
				return "", false
			}
			if pattern = lower(pattern); pattern == host || oneLabel(pattern, host) {
				return t.Secret, t.Secret != ""
			}
		}
	}
	for _, t := range o.TLS {
		if len(t.Hosts) == 0 {
			return t.Secret, t.Secret != ""
		}
	}
	return "", false
}

// oneLabel reports whether a wildcard matches a host with exactly one label in place of the star.
func oneLabel(wildcard, host string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	label, rest, _ := strings.Cut(host, ".")
	return ok && label != "" && label != "*" && "."+rest == suffix
}

// buildPassthrough leads TLS connections for the Ingress' hosts to their first backend, as they are.
func (b *ingressBuild) buildPassthrough() {
	for _, rule := range b.o.boundedRules() {
		host := lower(rule.Host)
		if host == "" || len(rule.Paths) == 0 {
			b.problem("AnnotationInvalid", "ssl-passthrough needs a host with a path")
			continue
		}
		t := &hostTLS{host: host, route: b.unit.ref, created: b.o.Created}
		b.options.Protocol, b.options.backendTLS = HTTP1, nil
		t.passthrough = []Backend{b.backend(rule.Paths[0].Backend)}
		b.unit.tls = append(b.unit.tls, t)
	}
}

// hasTLS reports whether an Ingress of the namespace has a certificate for a host. In ingress-nginx, a certificate of one
// Ingress makes all Ingresses of the host redirect to https; here, all of the namespace.
func (b *ingressBuild) hasTLS(host string) bool {
	if _, ok := b.o.SecretFor(host); ok {
		return true
	}
	if host == "" {
		return false
	}
	for _, o := range list[*Ingress](b.c, b.unit.ref, tlsList(b.o.Namespace, host)) {
		if _, ok := o.SecretFor(host); ok && b.c.classOf(o) != nil {
			return true
		}
	}
	return false
}

// tlsList is the list of the Ingresses of a namespace with TLS for a host.
func tlsList(namespace, host string) Ref {
	return Ref{tlsIngressesOf, api.Name{Namespace: namespace, Name: host}}
}

// redirectToTLS makes a rule redirect plain requests if the host has a certificate, unless ssl-redirect is false. A
// challenge of ACME must be answered in plain text.
func (b *ingressBuild) redirectToTLS(rule *Rule, host, path string) {
	on := b.options.ForceTLS || b.options.TLSRedirect && b.hasTLS(host)
	if !on || rule.Filters.Redirect != nil || strings.HasPrefix(path, "/.well-known/acme-challenge") {
		return
	}
	rule.Filters.Redirect = &Redirect{Scheme: "https", Code: 308, OnlyHTTP: true}
}

// replaceTLS records the TLS settings of an Ingress.
func (x *attachments) replaceTLS(old, unit *routeUnit) {
	for _, t := range old.tls {
		delete(x.tls[t.host], old.ref)
		x.staleTLS[t.host] = struct{}{}
	}
	for _, t := range unit.tls {
		if x.tls[t.host] == nil {
			x.tls[t.host] = map[Ref]*hostTLS{}
		}
		x.tls[t.host][unit.ref] = t
		x.staleTLS[t.host] = struct{}{}
	}
}

// rebuildTLS builds the TLS settings of stale hosts. Of two Ingresses with one host, the older one counts. If only the
// younger one asks for clients' certificates, they are asked for: its rules rely on that.
func (x *attachments) rebuildTLS() {
	next := x.ingressTLS
	next.hosts.exact, next.hosts.wildcard = maps.Clone(next.hosts.exact), maps.Clone(next.hosts.wildcard)
	for host := range x.staleTLS {
		all := slices.SortedFunc(maps.Values(x.tls[host]), func(a, b *hostTLS) int {
			return cmp.Or(cmp.Compare(a.created, b.created), a.route.Compare(b.route.Name))
		})
		if len(all) == 0 {
			delete(x.tls, host)
			next.hosts.unset(host)
			continue
		}
		best := *all[0]
		for _, t := range all {
			best.clientCAs = cmp.Or(best.clientCAs, t.clientCAs)
			best.certificate = cmp.Or(best.certificate, t.certificate)
		}
		next.hosts.set(host, &best)
	}
	clear(x.staleTLS)
	x.ingressTLS = next
}

func (c *Compiler) ingressPorts() []Port {
	return []Port{
		{Number: c.settings.IngressHTTP, Proto: api.TCP, HTTP: true, External: 80},
		{Number: c.settings.IngressHTTPS, Proto: api.TCP, HTTP: true, TLS: true, External: 443},
	}
}

// ingressPort builds one of the Ingresses' ports.
func (c *Compiler) ingressPort(p Port) *portTable {
	l := &listener{Listener: Listener{Port: p.External}, accepted: true, bind: p.Number, proto: p.Proto, protocol: protoHTTP}
	if p.TLS {
		l.protocol = protoHTTPS
		settings := c.attached.ingressTLS
		l.ingress = &settings
		if name := c.settings.DefaultCertificate; name != (api.Name{}) {
			l.ingress.fallback, _ = c.certificate(Ref{Kind: ingressPortsKind}, name)
		}
	}
	t := &portTable{Port: p}
	t.listeners.set("", &listenerTable{listener: l, hosts: c.attached.hosts[listenerKey{}]})
	return t
}

// checkCanary reports a canary whose host no other Ingress of the namespace has.
func (b *ingressBuild) checkCanary() {
	for _, r := range b.o.boundedRules() {
		if len(r.Paths) == 0 {
			b.problem("AnnotationInvalid", "canary: host %q has no path", r.Host)
		}
	}
}
