package names

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/dns/names"
	"github.com/fairway-net/fairway/internal/kube"
)

// SourceNames are ExternalDNS's names of the kinds of objects that have names.
var SourceNames = []string{"service", "ingress", "gateway-httproute", "gateway-grpcroute", "gateway-tlsroute"}

// CheckSources returns an error if a source is unknown.
func CheckSources(sources []string) error {
	for _, s := range sources {
		if !slices.Contains(SourceNames, s) {
			return fmt.Errorf("--source %q is unknown [choose among %s]", s, strings.Join(SourceNames, ", "))
		}
	}
	return nil
}

// Sources is a subscription to the objects whose names another DNS server gets, by ExternalDNS's rules.
type Sources struct {
	*kube.Subscription
	services *kube.Feed[service]
	slices   *kube.Feed[slice]
	nodes    *kube.Feed[kube.Node]
	claims   *kube.Claims // of nodes
	objects  map[string]*kube.Feed[names.Object]
	gateways *kube.Feed[names.Gateway]
}

// SubscribeSources returns a subscription to sources. The Store needs Config.Custom.
func SubscribeSources(s *kube.Store, consumer string, sources []string) *Sources {
	o := &Sources{Subscription: s.Subscribe(consumer), objects: map[string]*kube.Feed[names.Object]{}}
	client, custom := s.Config().Client, s.Config().Custom
	var inputs []kube.Input
	if slices.Contains(sources, "service") {
		inputs = o.followServices(s)
	}
	if slices.Contains(sources, "ingress") {
		f := kube.Open(s, kube.Kind[*networkingv1.Ingress, names.Object]{
			Name: "ingresses", Object: &networkingv1.Ingress{}, Without: "Ingresses have no names",
			Client: kube.From(client.NetworkingV1().Ingresses(metav1.NamespaceAll)), Trim: convertPublishedIngress,
		})
		o.objects["ingress"] = f
		inputs = append(inputs, f.Marks(o.Subscription).OrRefused())
	}
	for resource, kind := range routes {
		if !slices.Contains(sources, "gateway-"+strings.ToLower(kind)) {
			continue
		}
		f := kube.Open(s, kube.Kind[*unstructured.Unstructured, names.Object]{
			Name: resource, Object: &unstructured.Unstructured{}, Without: kind + "s have no names",
			Client: kube.From(custom.Resource(standard(resource))),
			Trim:   func(u *unstructured.Unstructured) *names.Object { return convertPublishedRoute(u, kind) },
		})
		o.objects[strings.ToLower(kind)] = f
		inputs = append(inputs, f.Marks(o.Subscription).OrRefused())
	}
	if slices.ContainsFunc(sources, func(s string) bool { return strings.HasPrefix(s, "gateway-") }) {
		o.gateways = kube.Open(s, kube.Kind[*unstructured.Unstructured, names.Gateway]{
			Name: "gateways", Object: &unstructured.Unstructured{}, Without: "routes have no names",
			Client: kube.From(custom.Resource(standard("gateways"))), Trim: convertPublishedGateway,
		})
		inputs = append(inputs, o.gateways.Marks(o.Subscription).OrRefused())
	}
	o.Need(inputs, nil)
	return o
}

// followServices follows Services, and the EndpointSlices and nodes that some of them depend on.
func (o *Sources) followServices(s *kube.Store) []kube.Input {
	client := s.Config().Client
	o.services = kube.Open(s, kube.Kind[*corev1.Service, service]{
		Name: "services", Object: &corev1.Service{}, Client: kube.From(client.CoreV1().Services(metav1.NamespaceAll)), Trim: convertSource,
	})
	o.slices = kube.Open(s, kube.Kind[*discoveryv1.EndpointSlice, slice]{
		Name: "endpointslices", Object: &discoveryv1.EndpointSlice{}, Without: "headless Services have no names",
		Client: kube.From(client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)), Trim: convertSlice,
		Owner: func(s *slice) api.Name { return s.service },
	})
	o.nodes = kube.Open(s, kube.Kind[*corev1.Node, kube.Node]{
		Name: "nodes", Object: &corev1.Node{}, Without: "NodePorts have no names",
		Client: kube.From(client.CoreV1().Nodes()), Trim: func(n *corev1.Node) *kube.Node { out := kube.ConvertNode(n); return &out },
	})
	o.claims = kube.ClaimsOf(s, o.nodes, (*kube.Node).NodeClaims)
	// An EndpointSlice or a node matters only if a Service depends on it.
	o.slices.Follow(func(_ api.Name, old, new *slice, _ int64) {
		for _, one := range []*slice{old, new} {
			if one != nil && o.depends(one.service) {
				o.Notify()
			}
		}
	})
	o.nodes.Follow(func(_ api.Name, old, new *kube.Node, _ int64) {
		if old == nil || new == nil || !slices.Equal(old.Addrs, new.Addrs) {
			o.Notify()
		}
	})
	return []kube.Input{o.services.Marks(o.Subscription), o.slices.Gates(o.Subscription).OrRefused(), o.nodes.Gates(o.Subscription).OrRefused()}
}

func (o *Sources) depends(name api.Name) bool {
	s, ok := o.services.Get(name)
	return ok && (s.headless || s.nodePort && s.local)
}

// Listed returns the kinds, in lower case, that the API server lists. Services count only with EndpointSlices and nodes,
// from which some of their names come; routes only with Gateways.
func (o *Sources) Listed() map[string]bool {
	all := map[string]bool{}
	if o.services != nil {
		all["service"] = o.services.Input().Listed() && o.slices.Input().Listed() && o.nodes.Input().Listed()
	}
	for kind, f := range o.objects {
		all[kind] = f.Input().Listed() && (kind == "ingress" || o.gateways.Input().Listed())
	}
	return all
}

// Cluster returns the present objects.
func (o *Sources) Cluster() (c names.Cluster) {
	if o.services != nil {
		nodes := o.nodeAddrs()
		for _, s := range o.services.All() {
			var of []*slice
			if s.headless || s.nodePort && s.local {
				of = o.slices.Of(api.Name{Namespace: s.Namespace, Name: s.Name})
			}
			c.Objects = append(c.Objects, s.expand(of, nodes)...)
		}
	}
	for _, f := range o.objects {
		for _, one := range f.All() {
			c.Objects = append(c.Objects, *one)
		}
	}
	if o.gateways != nil {
		for _, g := range o.gateways.All() {
			c.Gateways = append(c.Gateways, *g)
		}
	}
	return c
}

// nodeAddrs returns the addresses of all nodes, as far as they are accepted.
func (o *Sources) nodeAddrs() map[string]nodeAddrs {
	accepted, all := o.claims.Now(), map[string]nodeAddrs{}
	for _, n := range o.nodes.All() {
		var one nodeAddrs
		for i, a := range n.Addrs {
			if !slices.Contains(accepted.Owned(n.Name), a) {
				continue
			}
			if i < n.Internal {
				one.internal = append(one.internal, a)
			} else {
				one.external = append(one.external, a)
			}
		}
		all[n.Name] = one
	}
	return all
}
