package gateway

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
	oneline "github.com/fairway-net/fairway/internal/text"
)

// An entry is what a feed keeps of an object.
type entry struct {
	object gateway.Object
	// status is the status that the object has; nil: nobody asks for it.
	status *status
}

// A customKind is a kind of a CustomResourceDefinition.
type customKind struct {
	kind     gateway.Kind
	resource schema.GroupVersionResource // the version that Fairway reads and writes
	without  string                      // the effect of an absent kind
	convert  func(*unstructured.Unstructured) (gateway.Object, error)
}

// standard returns a resource of Gateway API.
func standard(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gateway.Group, Version: gatewayv1.GroupVersion.Version, Resource: resource}
}

// customKinds are the kinds of Gateway API, and RoutePolicy.
var customKinds = []customKind{
	{gateway.KindGatewayClass, standard("gatewayclasses"), "no Gateway is served", reader(convertClass)},
	{gateway.KindGateway, standard("gateways"), "no Gateway is served", reader(convertGateway)},
	{gateway.KindListenerSet, standard("listenersets"), "ListenerSets add no listeners", reader(convertListenerSet)},
	{gateway.KindHTTPRoute, standard("httproutes"), "HTTPRoutes lead nowhere", reader(convertHTTPRoute)},
	{gateway.KindGRPCRoute, standard("grpcroutes"), "GRPCRoutes lead nowhere", reader(convertGRPCRoute)},
	{gateway.KindTLSRoute, standard("tlsroutes"), "TLSRoutes lead nowhere", reader(convertTLSRoute)},
	{gateway.KindTCPRoute, standard("tcproutes"), "TCPRoutes lead nowhere", reader(convertTCPRoute)},
	{gateway.KindUDPRoute, standard("udproutes"), "UDPRoutes lead nowhere", reader(convertUDPRoute)},
	{gateway.KindReferenceGrant, standard("referencegrants"), "no reference to another namespace is allowed", reader(convertGrant)},
	{gateway.KindBackendTLSPolicy, standard("backendtlspolicies"), "backends are reached without TLS", reader(convertBackendTLSPolicy)},
	{gateway.KindRoutePolicy, routePolicies, "RoutePolicies do not count", readRoutePolicy},
}

// customKindOf returns a kind, if there is such a kind.
func customKindOf(kind gateway.Kind) (customKind, bool) {
	at := slices.IndexFunc(customKinds, func(k customKind) bool { return k.kind == kind })
	if at < 0 {
		return customKind{}, false
	}
	return customKinds[at], true
}

// reader returns a function that reads an object as T and converts it. The cluster's schema may differ from ours.
func reader[T any](convert func(*T) gateway.Object) func(*unstructured.Unstructured) (gateway.Object, error) {
	return func(o *unstructured.Unstructured) (gateway.Object, error) {
		var typed T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
			return nil, oneline.OneLine(err)
		}
		return convert(&typed), nil
	}
}

// feed declares the kind. An object that cannot be read counts as absent.
func (k customKind) feed(s *kube.Store, withStatus bool) kube.Kind[*unstructured.Unstructured, entry] {
	log := s.Config().Log
	return kube.Kind[*unstructured.Unstructured, entry]{
		Name: k.resource.Resource, Without: k.without, Object: &unstructured.Unstructured{}, Client: kube.From(s.Config().Custom.Resource(k.resource)),
		Trim: func(o *unstructured.Unstructured) *entry {
			object, err := k.convert(o)
			if err != nil {
				logUnreadable(log, k.kind, o, err)
				return nil
			}
			e := &entry{object: object}
			if withStatus {
				e.status = readStatus(k.kind, o)
			}
			return e
		},
	}
}

// Convert converts an object of any kind that the package reads.
func Convert(o *unstructured.Unstructured) (gateway.Object, error) {
	if k, ok := customKindOf(gateway.Kind(o.GetKind())); ok {
		return k.convert(o)
	}
	switch gateway.Kind(o.GetKind()) {
	case gateway.KindIngress:
		return reader(convertIngress)(o)
	case gateway.KindIngressClass:
		return reader(convertIngressClass)(o)
	case gateway.KindNamespace:
		return reader(convertNamespace)(o)
	case gateway.KindService:
		return reader(func(s *corev1.Service) gateway.Object { return convertService(s) })(o)
	case gateway.KindSecret:
		return viaJSON(o, func(s *corev1.Secret) gateway.Object { return convertSecret(s) })
	case gateway.KindConfigMap:
		return viaJSON(o, func(s *corev1.ConfigMap) gateway.Object { return convertConfigMap(s) })
	}
	return nil, fmt.Errorf("%q is no kind of ours", o.GetKind())
}

// viaJSON reads an object as a typed client does, with its binary fields.
func viaJSON[T any](o *unstructured.Unstructured, convert func(*T) gateway.Object) (gateway.Object, error) {
	text, err := json.Marshal(o.Object)
	if err != nil {
		return nil, err
	}
	var typed T
	if err := json.Unmarshal(text, &typed); err != nil {
		return nil, oneline.OneLine(err)
	}
	return convert(&typed), nil
}

func logUnreadable(log *slog.Logger, kind gateway.Kind, o metav1.Object, err error) {
	log.Warn("an object cannot be read and counts as absent [is its CustomResourceDefinition that of this version?]",
		"kind", string(kind), "namespace", o.GetNamespace(), "name", o.GetName(), "err", err)
}

func ingressesKind(s *kube.Store, withStatus bool) kube.Kind[*networkingv1.Ingress, entry] {
	return kube.Kind[*networkingv1.Ingress, entry]{
		Name: "ingresses", Object: &networkingv1.Ingress{}, Client: kube.From(s.Config().Client.NetworkingV1().Ingresses(metav1.NamespaceAll)),
		Trim: func(o *networkingv1.Ingress) *entry {
			e := &entry{object: convertIngress(o)}
			if withStatus {
				e.status = readIngressStatus(o)
			}
			return e
		},
	}
}

func ingressClassesKind(s *kube.Store) kube.Kind[*networkingv1.IngressClass, entry] {
	return kube.Kind[*networkingv1.IngressClass, entry]{
		Name: "ingressclasses", Object: &networkingv1.IngressClass{}, Client: kube.From(s.Config().Client.NetworkingV1().IngressClasses()),
		Trim: func(o *networkingv1.IngressClass) *entry { return &entry{object: convertIngressClass(o)} },
	}
}

func namespacesKind(s *kube.Store) kube.Kind[*corev1.Namespace, entry] {
	return kube.Kind[*corev1.Namespace, entry]{
		Name: "namespaces", Object: &corev1.Namespace{}, Client: kube.From(s.Config().Client.CoreV1().Namespaces()),
		Trim: func(o *corev1.Namespace) *entry { return &entry{object: convertNamespace(o)} },
	}
}
