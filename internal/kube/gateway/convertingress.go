package gateway

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/fairway-net/fairway/internal/gateway"
)

// annotationIngressClass is the old way to name the class of an Ingress. It counts if spec.ingressClassName is absent.
const annotationIngressClass = "kubernetes.io/ingress.class"

func convertIngressClass(o *networkingv1.IngressClass) gateway.Object {
	return &gateway.IngressClass{
		Meta: metaOf(o), Controller: o.Spec.Controller, Default: o.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true",
	}
}

func convertIngress(o *networkingv1.Ingress) gateway.Object {
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
