package gateway

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// Protocols of listeners.
const (
	protoHTTP  = "HTTP"
	protoHTTPS = "HTTPS"
	protoTLS   = "TLS"
	protoTCP   = "TCP"
	protoUDP   = "UDP"
)

// A listener is a compiled listener of a Gateway or a ListenerSet. It is immutable, and keeps its pointer while its
// meaning stays.
type listener struct {
	Listener
	protocol     string
	proto        api.Proto
	bind         uint16 // the process's port; 0: it is not served
	passthrough  bool
	gateway      api.Name
	kinds        []GroupKind // of routes that may attach
	namespaces   Namespaces
	accepted     bool
	certificates []*tls.Certificate
	clientCAs    *x509.CertPool
	clientAny    bool
	backendCert  *tls.Certificate // for backends with TLS
	ingress      *ingressTLS
}

// A draft is a listener while its Gateway is compiled.
type draft struct {
	listener
	spec        *ListenerSpec
	conditions  conditions
	refusal     string // the reason of Accepted false; empty: accepted
	refusalText string
	unresolved  string // the reason of ResolvedRefs false
	text        string
	conflict    string
	overlap     string
	unusable    bool // accepted, but it cannot serve: no certificate, or no kind of route
}

func (d *draft) refuse(reason, format string, args ...any) {
	if d.refusal == "" {
		d.refusal, d.refusalText = reason, fmt.Sprintf(format, args...)
	}
}

func (d *draft) unresolve(reason, format string, args ...any) {
	if d.unresolved == "" {
		d.unresolved, d.text = reason, fmt.Sprintf(format, args...)
	}
}

// kindsOf has the kinds of routes of each protocol.
var kindsOf = map[string][]Kind{
	protoHTTP:  {KindHTTPRoute, KindGRPCRoute},
	protoHTTPS: {KindHTTPRoute, KindGRPCRoute},
	protoTLS:   {KindTLSRoute},
	protoTCP:   {KindTCPRoute},
	protoUDP:   {KindUDPRoute},
}

// draftListener compiles one listener, without a look at its siblings.
func (c *Compiler) draftListener(g *Gateway, owner Ref, spec *ListenerSpec) *draft {
	d := &draft{spec: spec}
	d.Listener = Listener{Owner: owner, Name: spec.Name, Hostname: lower(spec.Hostname), Port: spec.Port}
	d.protocol, d.gateway, d.proto = spec.Protocol, g.Name, api.TCP
	if spec.Protocol == protoUDP {
		d.proto = api.UDP
	}
	if kindsOf[spec.Protocol] == nil {
		d.refuse(reasonUnsupportedProtocol, "protocol %q is not supported [use HTTP, HTTPS, TLS, TCP or UDP]", spec.Protocol)
		return d
	}
	if spec.Protocol == protoTCP || spec.Protocol == protoUDP {
		d.Hostname = ""
	}
	d.bind = g.Bind[BindKey{d.proto, spec.Port}]
	d.routesAllowed()
	switch spec.Protocol {
	case protoHTTPS, protoTLS:
		c.draftTLS(g, d)
	}
	if spec.Protocol == protoHTTPS {
		c.draftClients(g, d)
	}
	return d
}

// routesAllowed sets the kinds and namespaces of routes that may attach.
func (d *draft) routesAllowed() {
	allowed := d.spec.Allowed
	if allowed == nil {
		allowed = &AllowedRoutes{}
	}
	d.namespaces = allowed.Namespaces
	d.namespaces.From = cmp.Or(d.namespaces.From, "Same")
	possible := kindsOf[d.protocol]
	if len(allowed.Kinds) == 0 {
		for _, k := range possible {
			d.kinds = append(d.kinds, GroupKind{Group, string(k)})
		}
		return
	}
	for _, k := range allowed.Kinds {
		if k.Group != Group || !slices.Contains(possible, Kind(k.Kind)) {
			d.unresolve(reasonInvalidRouteKinds, "a listener of protocol %s has no routes of kind %s", d.protocol, k.Kind)
			continue
		}
		d.kinds = append(d.kinds, k)
	}
	d.unusable = len(d.kinds) == 0
}

// draftTLS resolves the listener's certificates.
func (c *Compiler) draftTLS(g *Gateway, d *draft) {
	spec := d.spec.TLS
	if spec == nil {
		spec = &ListenerTLS{}
	}
	d.passthrough = spec.Mode == "Passthrough"
	switch {
	case d.passthrough && d.protocol == protoHTTPS:
		d.refuse(reasonUnsupportedValue, "protocol HTTPS needs tls.mode Terminate [use protocol TLS for passthrough]")
		return
	case d.passthrough:
		return
	}
	for _, ref := range spec.Certificates {
		cert, reason, err := c.certificateFor(g, d.Owner, ref)
		if err != nil {
			d.unresolve(reason, "%v", err)
			continue
		}
		d.certificates = append(d.certificates, cert)
	}
	if len(d.certificates) == 0 {
		d.unresolve(reasonInvalidCertificate, "the listener names no certificate")
		d.unusable = true
	}
}

// certificateFor resolves a reference to a Secret with a certificate. The reader of the Secret is the Gateway, also for
// the reference of a ListenerSet.
func (c *Compiler) certificateFor(g *Gateway, from Ref, ref ObjectRef) (*tls.Certificate, string, error) {
	if ref.Group != "" || ref.Kind != string(KindSecret) {
		return nil, reasonInvalidCertificate, fmt.Errorf("a certificate of kind %s is not supported [use a Secret]", ref.GroupKind)
	}
	name := ref.in(from.Namespace)
	if !c.allowed(g.Ref(), from, KindSecret, name) {
		return nil, reasonRefNotPermitted, fmt.Errorf("no ReferenceGrant in namespace %s lets %s %s use Secret %s", name.Namespace, from.Kind, from.Name, name)
	}
	cert, err := c.certificate(g.Ref(), name)
	return cert, reasonInvalidCertificate, err
}

// draftClients resolves the CAs for clients' certificates.
func (c *Compiler) draftClients(g *Gateway, d *draft) {
	validation := g.Frontend
	if v, ok := g.FrontendPerPort[d.Port]; ok {
		validation = v
	}
	if validation == nil {
		return
	}
	d.clientAny = validation.Mode == "AllowInsecureFallback"
	var pools []Object
	for _, ref := range validation.CAs {
		if ref.Group != "" || ref.Kind != string(KindConfigMap) {
			d.unresolve(reasonInvalidCAKind, "CAs of kind %s are not supported [use a ConfigMap]", ref.GroupKind)
			continue
		}
		name := ref.in(g.Namespace)
		if !c.allowed(g.Ref(), g.Ref(), KindConfigMap, name) {
			d.unresolve(reasonRefNotPermitted, "no ReferenceGrant in namespace %s lets Gateway %s use ConfigMap %s", name.Namespace, g.Name, name)
			continue
		}
		if _, err := c.authorities(g.Ref(), KindConfigMap, name); err != nil {
			d.unresolve(reasonInvalidCA, "%v", err)
			continue
		}
		pools = append(pools, c.objects[Ref{KindConfigMap, name}])
	}
	d.clientCAs = c.secrets.join(pools)
	if d.clientCAs == nil {
		d.refuse(reasonNoValidCA, "no CA for clients' certificates can be read")
	}
}

// report returns the listener's status without the number of routes.
func (d *draft) report() ListenerReport {
	cs := &d.conditions
	switch {
	case d.conflict != "":
		text := "another listener has this port with another protocol"
		if d.conflict == reasonHostnameConflict {
			text = "another listener has this port and host name"
		}
		cs.set(accepted, false, d.conflict, text)
		cs.set(programmed, false, d.conflict, text)
		cs.set(conflicted, true, d.conflict, text)
	case d.refusal != "":
		cs.set(accepted, false, d.refusal, d.refusalText)
		cs.set(programmed, false, reasonInvalid, d.refusalText)
		cs.set(conflicted, false, reasonNoConflicts, "")
	default:
		cs.good(accepted)
		d.reportProgrammed()
		cs.set(conflicted, false, reasonNoConflicts, "")
	}
	if d.unresolved != "" {
		cs.set(resolvedRefs, false, d.unresolved, d.text)
	} else {
		cs.good(resolvedRefs)
	}
	if d.overlap != "" {
		cs.set(overlappingTLS, true, reasonOverlappingHostnames, "the host name overlaps with the one of listener "+d.overlap+
			"; a client that reuses its connection for the other name gets 421")
	}
	return ListenerReport{Name: d.Name, Kinds: d.kinds, Conditions: d.conditions}
}

func (d *draft) reportProgrammed() {
	switch {
	case d.unusable:
		d.conditions.set(programmed, false, reasonInvalid, d.text)
	case d.bind == 0:
		d.conditions.set(programmed, false, reasonPending, "the gateway has no port for this listener yet")
	default:
		d.conditions.good(programmed)
	}
}

// served reports whether connections reach the listener.
func (d *draft) served() bool {
	return d.conflict == "" && d.refusal == "" && !d.unusable && d.bind != 0
}

// family names the protocols that can share a port.
func family(protocol string) string {
	if protocol == protoHTTPS {
		return protoTLS
	}
	return protocol
}

// intersects reports whether a host name can match both patterns. Empty: all.
func intersects(a, b string) bool {
	_, ok := intersect(a, b)
	return ok
}

// intersect returns the more specific of two host name patterns, if one covers the other.
func intersect(a, b string) (string, bool) {
	switch {
	case a == "" || a == b:
		return b, true
	case b == "":
		return a, true
	case covers(a, b):
		return b, true
	case covers(b, a):
		return a, true
	}
	return "", false
}

// covers reports whether a wildcard pattern matches all hosts of another pattern: *.example.com covers a.example.com,
// a.b.example.com and *.b.example.com, and not example.com.
func covers(wildcard, host string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	return ok && strings.HasSuffix(host, suffix) && len(host) > len(suffix) && host != wildcard
}

func (k GroupKind) String() string {
	if k.Group == "" {
		return k.Kind
	}
	return k.Kind + "." + k.Group
}
