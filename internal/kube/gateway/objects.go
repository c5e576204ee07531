package gateway

import (
	"context"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// Config is the configuration of Objects.
type Config struct {
	// Namespace is where the controller keeps the bind ports.
	Namespace string
	// Statuses reads statuses too, for the controller.
	Statuses bool
}

// Objects is a subscription to the objects that decide about requests: Gateway API, Ingresses, Services, their
// endpoints, and by name Secrets and ConfigMaps. A change wakes the consumer, which calls Update.
type Objects struct {
	*kube.Subscription
	store    *kube.Store
	feeds    map[gateway.Kind]*kube.Feed[entry]
	services *kube.Feed[serviceEntry]
	slices   *kube.Feed[service.Slice]
	binds    *kube.Feed[binds]
	fetch    *fetcher
	needs    []kube.Input

	// mu may be taken while the lock of a feed is held. No lock of a feed may be taken while mu is held.
	mu        sync.Mutex
	dirty     map[gateway.Ref]bool
	endpoints map[api.Name]bool // Services whose endpoints have changed
	allBinds  bool              // the bind ports have changed
}

// A serviceEntry is a Service for routes, and for the choice of endpoints.
type serviceEntry struct {
	route     *gateway.Service
	endpoints *service.Service
}

// Subscribe returns a subscription for a consumer with this name in the log. The Store needs Config.Custom. Run must run.
func Subscribe(s *kube.Store, consumer string, cfg Config) *Objects {
	o := &Objects{
		Subscription: s.Subscribe(consumer), store: s, feeds: map[gateway.Kind]*kube.Feed[entry]{},
		dirty: map[gateway.Ref]bool{}, endpoints: map[api.Name]bool{},
	}
	o.fetch = newFetcher(s.Config().Log, s.Config().Client, o.mark)
	var all []kube.Input
	for _, k := range customKinds {
		all = append(all, o.follow(k.kind, kube.Open(s, k.feed(s, cfg.Statuses))).OrRefused())
	}
	all = append(all, o.followServices()...)
	all = append(all,
		o.follow(gateway.KindIngress, kube.Open(s, ingressesKind(s, cfg.Statuses))),
		o.follow(gateway.KindIngressClass, kube.Open(s, ingressClassesKind(s))),
		o.follow(gateway.KindNamespace, kube.Open(s, namespacesKind(s))),
		o.followBinds(cfg.Namespace))
	o.needs = all
	o.Need(all, nil)
	return o
}

// AlsoNeed makes the subscription wait for more kinds. It must be called before the store runs.
func (o *Objects) AlsoNeed(more ...kube.Input) {
	o.needs = append(o.needs, more...)
	o.Need(o.needs, nil)
}

// follow marks the changed objects of a kind. A change of the status alone marks nothing.
func (o *Objects) follow(kind gateway.Kind, f *kube.Feed[entry]) kube.Input {
	o.feeds[kind] = f
	f.Follow(func(name api.Name, old, new *entry, _ int64) {
		if old != nil && new != nil && reflect.DeepEqual(old.object, new.object) {
			return
		}
		o.mark(gateway.Ref{Kind: kind, Name: name})
	})
	return f.Gates(o.Subscription)
}

// followServices reads all Services and EndpointSlices. Unlike a node's proxy, a gateway also uses headless Services.
func (o *Objects) followServices() []kube.Input {
	client := o.store.Config().Client
	o.services = kube.Open(o.store, kube.Kind[*corev1.Service, serviceEntry]{
		Name: "services", Object: &corev1.Service{}, Client: kube.From(client.CoreV1().Services(metav1.NamespaceAll)),
		Trim: func(o *corev1.Service) *serviceEntry {
			return newServiceEntry(o)
		},
	})
	slices := kube.SlicesKind(client)
	slices.Only = metav1.ListOptions{}
	o.slices = kube.Open(o.store, slices)
	o.services.Follow(func(name api.Name, old, new *serviceEntry, _ int64) {
		o.markEndpoints(name)
		if old == nil || new == nil || !reflect.DeepEqual(old.route, new.route) {
			o.mark(gateway.Ref{Kind: gateway.KindService, Name: name})
		}
	})
	o.slices.Follow(func(_ api.Name, old, new *service.Slice, _ int64) {
		for _, s := range []*service.Slice{old, new} {
			if s != nil {
				o.markEndpoints(s.Service)
			}
		}
	})
	return []kube.Input{o.services.Gates(o.Subscription), o.slices.Gates(o.Subscription)}
}

// newServiceEntry converts a Service. The proxy's reading leaves out the ports of a headless Service.
func newServiceEntry(o *corev1.Service) *serviceEntry {
	e := &serviceEntry{route: convertService(o), endpoints: kube.ConvertService(o)}
	e.endpoints.Ports = nil
	for _, p := range e.route.Ports {
		e.endpoints.Ports = append(e.endpoints.Ports, service.Port{Name: p.Name, Proto: p.Proto, Port: p.Port})
	}
	return e
}

func (o *Objects) mark(ref gateway.Ref) {
	o.mu.Lock()
	o.dirty[ref] = true
	o.mu.Unlock()
	o.Notify()
}

func (o *Objects) markEndpoints(name api.Name) {
	o.mu.Lock()
	o.endpoints[name] = true
	o.mu.Unlock()
	o.Notify()
}

// A Compiler keeps objects. It is a *gateway.Compiler.
type Compiler interface {
	Set(gateway.Object)
	Delete(gateway.Ref)
}

// Update hands the objects that have changed since the last Update to the compiler, and returns the names of the Services
// whose endpoints may have changed. It returns nothing before Synced.
func (o *Objects) Update(c Compiler) (endpoints map[api.Name]bool) {
	select {
	case <-o.Synced():
	default:
		return nil
	}
	o.mu.Lock()
	dirty, binds := o.dirty, o.allBinds
	endpoints = o.endpoints
	o.dirty, o.allBinds, o.endpoints = map[gateway.Ref]bool{}, false, map[api.Name]bool{}
	o.mu.Unlock()
	if binds {
		for _, name := range o.feeds[gateway.KindGateway].Names() {
			dirty[gateway.Ref{Kind: gateway.KindGateway, Name: name}] = true
		}
	}
	ports := o.bindPorts()
	for ref := range dirty {
		switch object := o.object(ref).(type) {
		case nil:
			c.Delete(ref)
		case *gateway.Gateway:
			bound := *object
			bound.Bind = ports[object.UID]
			c.Set(&bound)
		default:
			c.Set(object)
		}
	}
	return endpoints
}

// object returns the current object; nil: there is none.
func (o *Objects) object(ref gateway.Ref) gateway.Object {
	switch ref.Kind {
	case gateway.KindSecret, gateway.KindConfigMap:
		return o.fetch.get(ref)
	case gateway.KindService:
		if e, ok := o.services.Get(ref.Name); ok {
			return e.route
		}
		return nil
	}
	if e, ok := o.feeds[ref.Kind].Get(ref.Name); ok {
		return e.object
	}
	return nil
}

// Fetch reads the Secrets and ConfigMaps that objects name, and reports whether each has been tried. A later result
// wakes the consumer.
func (o *Objects) Fetch(needs gateway.Needs) (settled bool) { return o.fetch.want(needs) }

// Backends returns the endpoints of each port of a Service, as a node with these facts chooses them.
func (o *Objects) Backends(name api.Name, facts service.Facts) map[api.PortName][]service.Endpoint {
	e, ok := o.services.Get(name)
	if !ok {
		return nil
	}
	return service.Backends(e.endpoints, o.slices.Of(name), facts)
}

// Run reads the Secrets and ConfigMaps until ctx ends, which is no error.
func (o *Objects) Run(ctx context.Context) error { return o.fetch.Run(ctx) }
