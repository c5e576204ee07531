package gateway

import (
	"crypto/tls"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
)

// backend resolves a reference to a Service. A reference that is not valid becomes a refused Backend, which keeps its
// weight.
func (c *Compiler) backend(route Ref, ref ObjectRef, weight uint32, f *faults) Backend {
	b := Backend{Weight: weight, Port: ref.Port}
	name := ref.in(route.Namespace)
	b.Service = api.PortName{Name: name}
	switch {
	case ref.Group != "" || ref.Kind != string(KindService):
		b.Refused = f.unresolve(reasonInvalidKind, "a backend of kind %s is not supported [use a Service]", ref.GroupKind)
		return b
	case !c.allowed(route, route, KindService, name):
		b.Refused = f.unresolve(reasonRefNotPermitted, "no ReferenceGrant in namespace %s lets %s %s use Service %s", name.Namespace, route.Kind, route.Name, name)
		return b
	}
	service, _ := c.read(route, KindService, name).(*Service)
	if service == nil {
		b.Refused = f.unresolve(reasonBackendNotFound, "Service %s does not exist", name)
		return b
	}
	proto := api.TCP
	if route.Kind == KindUDPRoute {
		proto = api.UDP
	}
	port := service.port(ref.Port, proto)
	switch {
	case service.External != "":
		b.Refused = f.unresolve(reasonUnsupportedValue, "Service %s is of type ExternalName, which could lead anywhere [use a Service with EndpointSlices]", name)
	case port == nil:
		b.Refused = f.unresolve(reasonBackendNotFound, "Service %s has no %s port %d", name, proto, ref.Port)
	default:
		c.servicePort(route, service, port, &b)
	}
	return b
}

// servicePort fills in what a Service's port says about the Backend.
func (c *Compiler) servicePort(route Ref, service *Service, port *ServicePort, b *Backend) {
	b.Service.Port, b.Port = port.Name, port.Port
	b.Protocol = protocolOf(port.AppProtocol)
	if route.Kind == KindGRPCRoute {
		b.Protocol = H2C
	}
	switch route.Kind {
	case KindHTTPRoute, KindGRPCRoute:
		b.TLS, b.Refused = c.backendTLS(route, service, port)
	}
	if b.TLS != nil && b.Protocol == H2C {
		b.TLS.ALPN = []string{"h2"}
	}
}

// protocolOf reads the application protocol of a Service's port (KEP-3726). Unknown ones are HTTP/1.1, as in the API.
func protocolOf(appProtocol string) Protocol {
	switch appProtocol {
	case "kubernetes.io/h2c", "grpc":
		return H2C
	case "kubernetes.io/ws", "kubernetes.io/wss":
		return WebSocket
	}
	return HTTP1
}

func (o *Service) port(number uint16, proto api.Proto) *ServicePort {
	for i := range o.Ports {
		if p := &o.Ports[i]; p.Port == number && p.Proto == proto {
			return p
		}
	}
	return nil
}

// withCertificate returns a rule whose backends with TLS present a client certificate.
func withCertificate(r *Rule, cert *tls.Certificate) *Rule {
	copied := *r
	copied.Backends = make([]Backend, len(r.Backends))
	for i, b := range r.Backends {
		copied.Backends[i] = b.withCertificate(cert)
	}
	copied.Filters.Mirrors = nil
	for _, m := range r.Filters.Mirrors {
		m.Backend = m.Backend.withCertificate(cert)
		copied.Filters.Mirrors = append(copied.Filters.Mirrors, m)
	}
	return &copied
}

func (b Backend) withCertificate(cert *tls.Certificate) Backend {
	if b.TLS != nil {
		t := *b.TLS
		t.Certificate = cert
		b.TLS = &t
	}
	return b
}

// buildL4 compiles a TLSRoute, TCPRoute or UDPRoute. Only its first rule can be reached.
func (c *Compiler) buildL4(o *L4Route, unit *routeUnit) {
	var f faults
	s := &stream{Stream{Route: unit.ref}, o.Created}
	if len(o.Rules) > 0 {
		for _, b := range o.Rules[0].Backends {
			s.Backends = append(s.Backends, c.backend(unit.ref, b.ObjectRef, b.Weight, &f))
		}
	}
	if len(o.Rules) > 1 {
		unit.report.Problems = api.AddProblem(unit.report.Problems, "RuleUnreachable",
			"only the first of %d rules counts, because a %s has no conditions", len(o.Rules), o.Kind)
	}
	c.attach(unit, &o.RouteCommon, &f, nil)
	for i := range unit.attached {
		unit.attached[i].stream = s
	}
}

func (b Backend) String() string { return fmt.Sprintf("%s/%d", b.Service.Name, b.Port) }
