package gateway

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// metaOf converts an object's metadata. Only namespaces have labels in the model.
func metaOf(o metav1.Object) gateway.Meta {
	m := gateway.Meta{
		Name: api.Name{Namespace: o.GetNamespace(), Name: o.GetName()}, UID: string(o.GetUID()), Generation: o.GetGeneration(),
		Created: kube.Created(o.GetCreationTimestamp()),
	}
	kube.Intern(&m.Namespace)
	return m
}

// text returns the text that p points to; empty: nil.
func text[T ~string](p *T) string {
	if p == nil {
		return ""
	}
	return string(*p)
}

// orText returns the text that p points to, or the default if p is nil.
func orText[T ~string](p *T, or string) string {
	if p == nil {
		return or
	}
	return string(*p)
}

// texts converts a list of any kind of texts.
func texts[T ~string](all []T) (out []string) {
	for _, t := range all {
		out = append(out, string(t))
	}
	return out
}

// textMap converts a map of any kind of texts.
func textMap[K, V ~string](all map[K]V) map[string]string {
	if len(all) == 0 {
		return nil
	}
	out := make(map[string]string, len(all))
	for k, v := range all {
		out[string(k)] = string(v)
	}
	return out
}

// portOf converts the number of a port; 0: it is no port.
func portOf(n int32) uint16 {
	if !kube.ValidPort(n) {
		return 0
	}
	return uint16(n)
}

// optionalPort converts the number of a port that may be absent.
func optionalPort(n *int32) uint16 {
	if n == nil {
		return 0
	}
	return portOf(*n)
}

// The defaults of references.
const (
	groupGateway = gatewayv1.GroupName
	kindSecret   = string(gateway.KindSecret)
	kindService  = string(gateway.KindService)
	kindGateway  = string(gateway.KindGateway)
)

func groupKind(group, kind string) gateway.GroupKind {
	return gateway.GroupKind{Group: group, Kind: kind}
}

func secretRef(r *gatewayv1.SecretObjectReference) gateway.ObjectRef {
	return gateway.ObjectRef{GroupKind: groupKind(text(r.Group), orText(r.Kind, kindSecret)), Namespace: text(r.Namespace), Name: string(r.Name)}
}

func secretRefs(all []gatewayv1.SecretObjectReference) (out []gateway.ObjectRef) {
	for i := range all {
		out = append(out, secretRef(&all[i]))
	}
	return out
}

func parentRefs(all []gatewayv1.ParentReference) (out []gateway.ObjectRef) {
	for _, r := range all {
		out = append(out, gateway.ObjectRef{
			GroupKind: groupKind(orText(r.Group, groupGateway), orText(r.Kind, kindGateway)),
			Namespace: text(r.Namespace), Name: string(r.Name), Section: text(r.SectionName), Port: optionalPort(r.Port),
		})
	}
	return out
}

func backendObject(r *gatewayv1.BackendObjectReference) gateway.ObjectRef {
	return gateway.ObjectRef{
		GroupKind: groupKind(text(r.Group), orText(r.Kind, kindService)), Namespace: text(r.Namespace), Name: string(r.Name), Port: optionalPort(r.Port),
	}
}

// backendRef converts a backend. An absent weight is 1.
func backendRef(r *gatewayv1.BackendRef) gateway.BackendRef {
	b := gateway.BackendRef{ObjectRef: backendObject(&r.BackendObjectReference), Weight: 1}
	if r.Weight != nil {
		b.Weight = uint32(max(*r.Weight, 0))
	}
	return b
}

// namespacesOf converts a choice of namespaces. An invalid or absent selector matches nothing.
func namespacesOf(from *gatewayv1.FromNamespaces, selector *metav1.LabelSelector) gateway.Namespaces {
	n := gateway.Namespaces{From: text(from)}
	switch {
	case n.From != string(gatewayv1.NamespacesFromSelector):
	case selector == nil:
		n.Selector = api.NewSelector(api.Requirement{Op: api.Nothing})
	default:
		var bad kube.Problems // the API server has refused an invalid selector
		n.Selector = kube.ReadSelector("selector", selector, &bad)
	}
	return n
}

func convertClass(o *gatewayv1.GatewayClass) gateway.Object {
	return &gateway.Class{Meta: metaOf(o), Controller: string(o.Spec.ControllerName), Parameters: o.Spec.ParametersRef != nil}
}

func convertGateway(o *gatewayv1.Gateway) gateway.Object {
	g := &gateway.Gateway{Meta: metaOf(o), Class: string(o.Spec.GatewayClassName)}
	for i := range o.Spec.Listeners {
		l := &o.Spec.Listeners[i]
		g.Listeners = append(g.Listeners, listenerSpec(string(l.Name), l.Hostname, l.Port, l.Protocol, l.TLS, l.AllowedRoutes))
	}
	for _, a := range o.Spec.Addresses {
		kind := orText(a.Type, string(gatewayv1.IPAddressType))
		if ip, err := kube.ParseAddr(a.Value); err == nil && kind == string(gatewayv1.IPAddressType) {
			g.Addresses = append(g.Addresses, ip)
		} else if a.Value == "" && kind == string(gatewayv1.IPAddressType) {
			g.Addresses = append(g.Addresses, netip.Addr{}) // any address will do
		} else {
			g.OtherAddresses = append(g.OtherAddresses, kind+" "+a.Value)
		}
	}
	if a := o.Spec.AllowedListeners; a != nil && a.Namespaces != nil {
		g.AllowedListeners = namespacesOf(a.Namespaces.From, a.Namespaces.Selector)
	}
	if i := o.Spec.Infrastructure; i != nil {
		g.InfrastructureLabels, g.InfrastructureAnnotations = textMap(i.Labels), textMap(i.Annotations)
		g.InfrastructureParameters = i.ParametersRef != nil
	}
	if t := o.Spec.TLS; t != nil {
		gatewayTLS(t, g)
	}
	return g
}

func gatewayTLS(t *gatewayv1.GatewayTLSConfig, g *gateway.Gateway) {
	if t.Backend != nil && t.Backend.ClientCertificateRef != nil {
		g.BackendCertificate = secretRef(t.Backend.ClientCertificateRef)
	}
	if t.Frontend == nil {
		return
	}
	g.Frontend = validation(t.Frontend.Default.Validation)
	for _, p := range t.Frontend.PerPort {
		if g.FrontendPerPort == nil {
			g.FrontendPerPort = map[uint16]*gateway.Validation{}
		}
		g.FrontendPerPort[portOf(p.Port)] = validation(p.TLS.Validation)
	}
}

func validation(v *gatewayv1.FrontendTLSValidation) *gateway.Validation {
	if v == nil {
		return nil
	}
	out := &gateway.Validation{Mode: string(v.Mode)}
	for _, r := range v.CACertificateRefs {
		out.CAs = append(out.CAs, gateway.ObjectRef{GroupKind: groupKind(string(r.Group), string(r.Kind)), Namespace: text(r.Namespace), Name: string(r.Name)})
	}
	return out
}

func listenerSpec(name string, host *gatewayv1.Hostname, port int32, protocol gatewayv1.ProtocolType, tls *gatewayv1.ListenerTLSConfig, allowed *gatewayv1.AllowedRoutes) gateway.ListenerSpec {
	l := gateway.ListenerSpec{Name: name, Hostname: text(host), Port: portOf(port), Protocol: string(protocol)}
	if tls != nil {
		l.TLS = &gateway.ListenerTLS{Mode: text(tls.Mode), Certificates: secretRefs(tls.CertificateRefs), Options: textMap(tls.Options)}
	}
	if allowed == nil {
		return l
	}
	l.Allowed = &gateway.AllowedRoutes{}
	if n := allowed.Namespaces; n != nil {
		l.Allowed.Namespaces = namespacesOf(n.From, n.Selector)
	}
	for _, k := range allowed.Kinds {
		l.Allowed.Kinds = append(l.Allowed.Kinds, groupKind(orText(k.Group, groupGateway), string(k.Kind)))
	}
	return l
}

func convertListenerSet(o *gatewayv1.ListenerSet) gateway.Object {
	p := o.Spec.ParentRef
	s := &gateway.ListenerSet{Meta: metaOf(o), Parent: gateway.ObjectRef{
		GroupKind: groupKind(orText(p.Group, groupGateway), orText(p.Kind, kindGateway)), Namespace: text(p.Namespace), Name: string(p.Name),
	}}
	for i := range o.Spec.Listeners {
		l := &o.Spec.Listeners[i]
		s.Listeners = append(s.Listeners, listenerSpec(string(l.Name), l.Hostname, l.Port, l.Protocol, l.TLS, l.AllowedRoutes))
	}
	return s
}

func convertGrant(o *gatewayv1.ReferenceGrant) gateway.Object {
	g := &gateway.Grant{Meta: metaOf(o)}
	for _, f := range o.Spec.From {
		g.From = append(g.From, gateway.GrantFrom{GroupKind: groupKind(string(f.Group), string(f.Kind)), Namespace: string(f.Namespace)})
	}
	for _, t := range o.Spec.To {
		g.To = append(g.To, gateway.GrantTo{GroupKind: groupKind(string(t.Group), string(t.Kind)), Name: text(t.Name)})
	}
	return g
}

func convertBackendTLSPolicy(o *gatewayv1.BackendTLSPolicy) gateway.Object {
	v := &o.Spec.Validation
	p := &gateway.BackendTLSPolicy{
		Meta: metaOf(o), WellKnown: text(v.WellKnownCACertificates), Hostname: string(v.Hostname), Options: textMap(o.Spec.Options),
	}
	for _, t := range o.Spec.TargetRefs {
		p.Targets = append(p.Targets, gateway.ObjectRef{GroupKind: groupKind(string(t.Group), string(t.Kind)), Name: string(t.Name), Section: text(t.SectionName)})
	}
	for _, r := range v.CACertificateRefs {
		p.CAs = append(p.CAs, gateway.ObjectRef{GroupKind: groupKind(string(r.Group), string(r.Kind)), Name: string(r.Name)})
	}
	for _, s := range v.SubjectAltNames {
		value := string(s.Hostname)
		if s.Type == gatewayv1.URISubjectAltNameType {
			value = string(s.URI)
		}
		p.SANs = append(p.SANs, gateway.SAN{Type: string(s.Type), Value: value})
	}
	return p
}

func convertNamespace(o *corev1.Namespace) gateway.Object {
	n := &gateway.Namespace{Meta: metaOf(o)}
	n.Labels = o.Labels
	return n
}

func convertService(o *corev1.Service) *gateway.Service {
	s := &gateway.Service{Meta: metaOf(o), Headless: o.Spec.ClusterIP == corev1.ClusterIPNone}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		s.External = o.Spec.ExternalName
	}
	for _, p := range o.Spec.Ports {
		proto, err := api.ParseProto(string(p.Protocol))
		if err != nil || !kube.ValidPort(p.Port) {
			continue // the reading of Services for the proxy reports it
		}
		s.Ports = append(s.Ports, gateway.ServicePort{Name: p.Name, Proto: proto, Port: uint16(p.Port), AppProtocol: text(p.AppProtocol)})
	}
	return s
}

func convertSecret(o *corev1.Secret) *gateway.Secret {
	return &gateway.Secret{Meta: metaOf(o), Type: string(o.Type), Data: o.Data}
}

// convertConfigMap converts a ConfigMap. Binary data is no certificate in PEM.
func convertConfigMap(o *corev1.ConfigMap) *gateway.ConfigMap {
	return &gateway.ConfigMap{Meta: metaOf(o), Data: o.Data}
}
