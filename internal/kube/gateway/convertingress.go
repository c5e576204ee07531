package gateway

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/gateway"
)

// annotationIngressClass is the old way to name the class of an Ingress. It counts if spec.ingressClassName is absent.
const annotationIngressClass = "kubernetes.io/ingress.class"

func convertIngressClass(o *networkingv1.IngressClass) gateway.Object {
	return &gateway.IngressClass{
		Meta: metaOf(o), Controller: o.Spec.Controller, Default: o.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true",
	}
}

func convertIngress(o *networkingv1.Ingress) gateway.Object { return readIngress(o) }

// Annotations is what annotations of ingress-nginx ask for.
type Annotations = gateway.Annotations

// ReadAnnotations returns what the annotations of ingress-nginx on an Ingress ask for.
func ReadAnnotations(o *networkingv1.Ingress) *Annotations {
	return gateway.ReadAnnotations(readIngress(o))
}

// SecretFor returns the name of the Secret with the certificate of an Ingress' host.
func SecretFor(o *networkingv1.Ingress, host string) (secret string, ok bool) {
	return readIngress(o).SecretFor(host)
}

// HeaderFilter writes headers that are set as the filters of a route have them.
func HeaderFilter(c *gateway.HeaderChange) *gatewayv1.HTTPHeaderFilter {
	f := &gatewayv1.HTTPHeaderFilter{}
	for _, h := range c.Set {
		f.Set = append(f.Set, gatewayv1.HTTPHeader{Name: gatewayv1.HTTPHeaderName(h.Name), Value: h.Value})
	}
	return f
}

// SetHeaders returns the change that sets the headers of a ConfigMap.
func SetHeaders(o *corev1.ConfigMap) *gateway.HeaderChange { return gateway.HeadersOf(o.Data) }

// SpeaksHTTP2 reports whether backends get HTTP/2.
func SpeaksHTTP2(a *Annotations) bool { return a.Protocol == gateway.H2C }

func readIngress(o *networkingv1.Ingress) *gateway.Ingress {
	i := &gateway.Ingress{
		Meta: metaOf(o), Annotations: o.Annotations, Class: orText(o.Spec.IngressClassName, o.Annotations[annotationIngressClass]),
	}
	if b := o.Spec.DefaultBackend; b != nil {
		converted := ingressBackend(b)
		i.Default = &converted
	}
	for _, t := range o.Spec.TLS {
		i.TLS = append(i.TLS, gateway.IngressTLS{Hosts: t.Hosts, Secret: t.SecretName})
	}
	for _, rule := range o.Spec.Rules {
		r := gateway.IngressRule{Host: rule.Host}
		if rule.HTTP != nil {
			for j := range rule.HTTP.Paths {
				p := &rule.HTTP.Paths[j]
				r.Paths = append(r.Paths, gateway.IngressPath{Path: p.Path, Type: text(p.PathType), Backend: ingressBackend(&p.Backend)})
			}
		}
		i.Rules = append(i.Rules, r)
	}
	return i
}

func ingressBackend(o *networkingv1.IngressBackend) (b gateway.IngressBackend) {
	if s := o.Service; s != nil {
		b.Service, b.Port, b.PortName = s.Name, portOf(s.Port.Number), s.Port.Name
	}
	if r := o.Resource; r != nil {
		b.Resource = text(r.APIGroup) + "/" + r.Kind + "/" + r.Name
	}
	return b
}
