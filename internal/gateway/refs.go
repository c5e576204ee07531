package gateway

import "github.com/fairway-net/fairway/internal/api"

// Group is the API group of the Gateway API.
const Group = "gateway.networking.k8s.io"

// PolicyGroup is the API group of RoutePolicy.
const PolicyGroup = "fairway.net"

func (m *Meta) meta() *Meta { return m }

// UID returns the UID of an object.
func UID(o Object) string { return o.meta().UID }

// Each kind says its own name. L4Route has three kinds.

func (o *Class) Ref() Ref            { return Ref{KindGatewayClass, o.Name} }
func (o *Gateway) Ref() Ref          { return Ref{KindGateway, o.Name} }
func (o *ListenerSet) Ref() Ref      { return Ref{KindListenerSet, o.Name} }
func (o *HTTPRoute) Ref() Ref        { return Ref{KindHTTPRoute, o.Name} }
func (o *GRPCRoute) Ref() Ref        { return Ref{KindGRPCRoute, o.Name} }
func (o *L4Route) Ref() Ref          { return Ref{o.Kind, o.Name} }
func (o *Grant) Ref() Ref            { return Ref{KindReferenceGrant, o.Name} }
func (o *BackendTLSPolicy) Ref() Ref { return Ref{KindBackendTLSPolicy, o.Name} }
func (o *RoutePolicy) Ref() Ref      { return Ref{KindRoutePolicy, o.Name} }
func (o *IngressClass) Ref() Ref     { return Ref{KindIngressClass, o.Name} }
func (o *Ingress) Ref() Ref          { return Ref{KindIngress, o.Name} }
func (o *Namespace) Ref() Ref        { return Ref{KindNamespace, o.Name} }
func (o *Service) Ref() Ref          { return Ref{KindService, o.Name} }
func (o *Secret) Ref() Ref           { return Ref{KindSecret, o.Name} }
func (o *ConfigMap) Ref() Ref        { return Ref{KindConfigMap, o.Name} }

// parent returns the name of the Gateway that a ListenerSet extends.
func (o *ListenerSet) parent() api.Name { return o.Parent.in(o.Namespace) }

// in returns the name of the referenced object, seen from a namespace.
func (r *ObjectRef) in(namespace string) api.Name {
	if r.Namespace != "" {
		namespace = r.Namespace
	}
	return api.Name{Namespace: namespace, Name: r.Name}
}

// groups has the API group of each kind that may refer to an object of another namespace, or be referred to.
var groups = map[Kind]string{
	KindGateway: Group, KindListenerSet: Group, KindHTTPRoute: Group, KindGRPCRoute: Group, KindTLSRoute: Group, KindTCPRoute: Group,
	KindUDPRoute: Group, KindRoutePolicy: PolicyGroup, KindIngress: "networking.k8s.io",
}

// allowed reports whether an object may refer to another one. It is the only reader of ReferenceGrants: objects of the
// same namespace may, all others need a grant in the namespace of the target. The reader is the compiled object that the
// answer is for: a Gateway asks for its ListenerSets.
func (c *Compiler) allowed(reader, from Ref, kind Kind, to api.Name) bool {
	if from.Namespace == to.Namespace {
		return true
	}
	for _, g := range list[*Grant](c, reader, Ref{grantsOf, api.Name{Name: to.Namespace}}) {
		if g.covers(from, kind, to.Name) {
			return true
		}
	}
	return false
}

func (o *Grant) covers(from Ref, kind Kind, name string) bool {
	return o.coversFrom(from) && o.coversTo(kind, name)
}

func (o *Grant) coversFrom(from Ref) bool {
	for _, f := range o.From {
		if f.Namespace == from.Namespace && f.Kind == string(from.Kind) && f.Group == groups[from.Kind] {
			return true
		}
	}
	return false
}

func (o *Grant) coversTo(kind Kind, name string) bool {
	for _, t := range o.To {
		if t.Kind == string(kind) && t.Group == groups[kind] && (t.Name == "" || t.Name == name) {
			return true
		}
	}
	return false
}
