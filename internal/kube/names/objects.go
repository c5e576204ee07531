package names

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kube"
)

// routes are the kinds of routes that have host names.
var routes = map[string]string{"httproutes": "HTTPRoute", "grpcroutes": "GRPCRoute", "tlsroutes": "TLSRoute"}

// standard returns a resource of Gateway API.
func standard(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: gatewayv1.GroupVersion.Version, Resource: resource}
}

// Objects is a subscription to everything that decides about names.
type Objects struct {
	*kube.Subscription
	objects  []*kube.Feed[names.Object]
	gateways *kube.Feed[names.Gateway]
}

// Subscribe returns a subscription for a consumer with this name in the log. The Store needs Config.Custom.
func Subscribe(s *kube.Store, consumer string) *Objects {
	o := &Objects{Subscription: s.Subscribe(consumer)}
	client, custom := s.Config().Client, s.Config().Custom
	services := kube.Open(s, kube.Kind[*corev1.Service, names.Object]{
		Name: "services", Object: &corev1.Service{}, Client: kube.From(client.CoreV1().Services(metav1.NamespaceAll)), Trim: convertService,
	})
	ingresses := kube.Open(s, kube.Kind[*networkingv1.Ingress, names.Object]{
		Name: "ingresses", Object: &networkingv1.Ingress{}, Without: "Ingresses have no names",
		Client: kube.From(client.NetworkingV1().Ingresses(metav1.NamespaceAll)), Trim: convertIngress,
	})
	o.objects = append(o.objects, services, ingresses)
	inputs := []kube.Input{services.Marks(o.Subscription), ingresses.Marks(o.Subscription).OrRefused()}
	for resource, kind := range routes {
		f := kube.Open(s, kube.Kind[*unstructured.Unstructured, names.Object]{
			Name: resource, Object: &unstructured.Unstructured{}, Without: kind + "s have no names",
			Client: kube.From(custom.Resource(standard(resource))),
			Trim:   func(u *unstructured.Unstructured) *names.Object { return convertRoute(u, kind) },
		})
		o.objects = append(o.objects, f)
		inputs = append(inputs, f.Marks(o.Subscription).OrRefused())
	}
	o.gateways = kube.Open(s, kube.Kind[*unstructured.Unstructured, names.Gateway]{
		Name: "gateways", Object: &unstructured.Unstructured{}, Without: "routes have no names",
		Client: kube.From(custom.Resource(standard("gateways"))), Trim: convertGateway,
	})
	o.Need(append(inputs, o.gateways.Marks(o.Subscription).OrRefused()), nil)
	return o
}

// Cluster returns the present objects.
func (o *Objects) Cluster() (c names.Cluster) {
	for _, f := range o.objects {
		for _, one := range f.All() {
			c.Objects = append(c.Objects, *one)
		}
	}
	for _, g := range o.gateways.All() {
		c.Gateways = append(c.Gateways, *g)
	}
	return c
}

// read reads an object as T. The cluster's schema may differ from ours: then the object counts as absent.
func read[T any](u *unstructured.Unstructured) *T {
	var typed T
	if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &typed) != nil {
		return nil
	}
	return &typed
}

// Reference returns the reference of an event about an object.
func Reference(r names.Ref, uid string) corev1.ObjectReference {
	version := gatewayv1.GroupVersion.String()
	switch r.Kind {
	case "Service":
		version = "v1"
	case "Ingress":
		version = networkingv1.SchemeGroupVersion.String()
	}
	return corev1.ObjectReference{APIVersion: version, Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, UID: types.UID(uid)}
}
