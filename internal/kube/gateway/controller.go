package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// ingressService is the Service that leads clients to Ingresses. Its endpoints are the gateway's pods.
const ingressService = "fairway-ingress"

const (
	// maxUnsettled is how long statuses wait for Secrets that objects name.
	maxUnsettled = 2 * time.Second
	// again is the pause before a pass that was not complete is repeated.
	again   = time.Second
	maxRest = time.Second
)

// ControllerConfig is the configuration of a Controller.
type ControllerConfig struct {
	Namespace string // of the bind ports and of the Service fairway-ingress
	Class     string // loadBalancerClass of the Gateways' Services; empty: none
	NodePorts bool   // the Gateways' Services get node ports, for a load balancer outside of Fairway
}

// A Controller does what is done once for all gateways: it allocates bind ports, makes the Services and EndpointSlices of
// Gateways, and writes all statuses and events. Only the elected controller runs it.
type Controller struct {
	cfg       ControllerConfig
	log       *slog.Logger
	store     *kube.Store
	events    *kube.Recorder
	objects   *Objects
	compiler  *gateway.Compiler
	own       *kube.Feed[ownService]
	ownSlices *kube.Feed[wantedSlice]
	ingress   *kube.Feed[[]string] // the addresses of the Service fairway-ingress

	statuses map[gateway.Kind]*kube.StatusWriter[ourStatus]
	services *kube.StatusWriter[wantedService]
	slices   *kube.StatusWriter[wantedSlice]
	class    *kube.StatusWriter[struct{}]

	metas     sync.Map // by the name of a Gateway's Service: its serviceMeta
	reports   map[gateway.Ref]*gateway.Report
	stale     map[gateway.Ref]bool // reports that are not published yet
	problems  map[gateway.Ref][]api.Problem
	addresses []string // of Ingresses
	lastBind  uint16
	unsettled time.Time // since when Secrets are missing; zero: none
	failure   string    // of the last write of the bind ports
}

// NewController returns the controller of a store, which must run too and needs Config.Custom.
func NewController(log *slog.Logger, s *kube.Store, events *kube.Recorder, cfg ControllerConfig) *Controller {
	c := &Controller{
		cfg: cfg, log: log, store: s, events: events, objects: Subscribe(s, "gateways", Config{Namespace: cfg.Namespace, Statuses: true}),
		compiler: gateway.NewCompiler(gateway.Settings{Controller: ControllerName}), statuses: map[gateway.Kind]*kube.StatusWriter[ourStatus]{},
		reports: map[gateway.Ref]*gateway.Report{}, stale: map[gateway.Ref]bool{}, problems: map[gateway.Ref][]api.Problem{},
	}
	for _, kind := range []gateway.Kind{gateway.KindGatewayClass, gateway.KindGateway, gateway.KindListenerSet, gateway.KindHTTPRoute, gateway.KindGRPCRoute,
		gateway.KindTLSRoute, gateway.KindTCPRoute, gateway.KindUDPRoute, gateway.KindBackendTLSPolicy, gateway.KindRoutePolicy, gateway.KindIngress} {
		c.statuses[kind] = c.newStatuses(kind)
	}
	c.class = c.newClass()
	client := s.Config().Client
	c.own = kube.Open(s, kube.Kind[*corev1.Service, ownService]{
		Name: "services", Object: &corev1.Service{}, Client: kube.From(client.CoreV1().Services(metav1.NamespaceAll)), Trim: convertOwnService,
		Only: metav1.ListOptions{LabelSelector: gatewayv1.GatewayNameLabelKey},
	})
	c.ownSlices = kube.Open(s, kube.Kind[*discoveryv1.EndpointSlice, wantedSlice]{
		Name: "endpointslices", Object: &discoveryv1.EndpointSlice{}, Client: kube.From(client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)), Trim: convertOwnSlice,
		Only: metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + owner},
	})
	c.ingress = kube.Open(s, kube.Kind[*corev1.Service, []string]{
		Name: "services", Object: &corev1.Service{}, Client: kube.From(client.CoreV1().Services(cfg.Namespace)),
		Only: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, ingressService).String()},
		Trim: func(o *corev1.Service) *[]string { all := balancerAddresses(o); return &all },
	})
	c.services = kube.NewStatusWriter(kube.StatusConfig[wantedService]{Log: log, Owner: owner, Kind: "services", Apply: c.applyService, Have: func(name api.Name) (wantedService, bool) {
		if s, ok := c.own.Get(name); ok {
			return s.wantedService, true
		}
		return wantedService{Gone: true}, true
	}})
	c.slices = kube.NewStatusWriter(kube.StatusConfig[wantedSlice]{Log: log, Owner: owner, Kind: "endpointslices", Apply: c.applySlice, Have: func(name api.Name) (wantedSlice, bool) {
		if s, ok := c.ownSlices.Get(name); ok {
			return *s, true
		}
		return wantedSlice{Gone: true}, true
	}})
	c.own.Follow(func(name api.Name, _, _ *ownService, _ int64) { c.services.Changed(name); c.objects.Notify() })
	c.ownSlices.Follow(func(name api.Name, _, _ *wantedSlice, _ int64) { c.slices.Changed(name) })
	c.ingress.Follow(func(api.Name, *[]string, *[]string, int64) { c.objects.Notify() })
	c.objects.AlsoNeed(c.own.Gates(c.objects.Subscription), c.ownSlices.Gates(c.objects.Subscription), c.ingress.Gates(c.objects.Subscription))
	return c
}

// newStatuses returns the writer of a kind's statuses.
func (c *Controller) newStatuses(kind gateway.Kind) *kube.StatusWriter[ourStatus] {
	w := kube.NewStatusWriter(kube.StatusConfig[ourStatus]{Log: c.log, Owner: owner, Kind: string(kind),
		Have: func(name api.Name) (ourStatus, bool) {
			e, ok := c.objects.feeds[kind].Get(name)
			if !ok {
				return ourStatus{}, false
			}
			return e.status.ours.of(kind), true
		},
		Apply: func(ctx context.Context, name api.Name, want ourStatus, how metav1.ApplyOptions) error {
			return c.applyStatus(ctx, kind, name, want, how.FieldManager)
		},
	})
	c.objects.feeds[kind].Follow(func(name api.Name, _, _ *entry, _ int64) { w.Changed(name) })
	return w
}

// applyStatus writes a status. Controllers share the list of a route's parents, which is replaced as a whole. So the write
// fails if the object is not the one that was read, and is tried again with the next one.
func (c *Controller) applyStatus(ctx context.Context, kind gateway.Kind, name api.Name, want ourStatus, manager string) error {
	e, ok := c.objects.feeds[kind].Get(name)
	if !ok {
		return nil
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": e.status.version}, "status": want.wire(kind, e.status, time.Now())})
	if err != nil {
		return fmt.Errorf("encode the status of %s %v: %w", kind, name, err)
	}
	options := metav1.PatchOptions{FieldManager: manager}
	if kind == gateway.KindIngress {
		_, err = c.store.Config().Client.NetworkingV1().Ingresses(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, data, options, "status")
		return err
	}
	k, _ := customKindOf(kind)
	_, err = c.store.Config().Custom.Resource(k.resource).Namespace(name.Namespace).Patch(ctx, name.Name, types.MergePatchType, data, options, "status")
	return err
}

// Run decides and writes until ctx ends, which is no error.
func (c *Controller) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { _ = c.objects.Run(ctx) })
	work.Go(func() { _ = c.services.Run(ctx) })
	work.Go(func() { _ = c.slices.Run(ctx) })
	work.Go(func() { _ = c.class.Run(ctx) })
	for _, w := range c.statuses {
		work.Go(func() { _ = w.Run(ctx) })
	}
	for incomplete := false; ; {
		var repeat <-chan time.Time
		if incomplete {
			repeat = time.After(again)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.objects.Dirty():
		case <-repeat:
		}
		start := time.Now()
		incomplete = !c.pass(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(min(time.Since(start), maxRest)):
		}
	}
}

// pass publishes what has changed, and reports whether nothing is left to do.
func (c *Controller) pass(ctx context.Context) bool {
	c.objects.Update(c.compiler)
	table := c.compiler.Table()
	settled := c.objects.Fetch(c.compiler.Needs())
	for ref, r := range c.compiler.Changes() {
		c.stale[ref] = true
		if c.reports[ref] = r; r == nil {
			delete(c.reports, ref)
		}
	}
	switch {
	case settled:
		c.unsettled = time.Time{}
	case c.unsettled.IsZero():
		c.unsettled = time.Now()
	}
	if !settled && time.Since(c.unsettled) < maxUnsettled {
		return false
	}
	complete := c.bind(ctx)
	c.publish(table)
	return complete && settled
}

// bind allocates bind ports, and reports whether the ConfigMap has them.
func (c *Controller) bind(ctx context.Context) bool {
	wanted := map[string][]gateway.BindKey{}
	for ref, keys := range c.compiler.Wanted() {
		if g, ok := c.objects.object(ref).(*gateway.Gateway); ok {
			wanted[g.UID] = keys
		}
	}
	have := maps.Clone(c.objects.bindPorts())
	ports, last := allocate(have, wanted, c.lastBind)
	c.lastBind = last
	for _, all := range []map[string]portMap{have, ports} {
		maps.DeleteFunc(all, func(_ string, p portMap) bool { return len(p) == 0 })
	}
	if maps.EqualFunc(have, ports, maps.Equal) {
		return true
	}
	err := writeBinds(ctx, c.store, c.cfg.Namespace, ports)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != c.failure && ctx.Err() == nil {
		c.log.Warn("cannot write the ports of Gateways, will try again", "err", err)
	}
	c.failure = text
	return err == nil
}

// publish hands the wanted objects and statuses to their writers.
func (c *Controller) publish(table *gateway.Table) {
	ports := map[gateway.Ref][]gateway.Port{}
	for _, p := range table.Ports() {
		ports[p.Owner] = append(ports[p.Owner], p)
	}
	wantSlices := map[api.Name]wantedSlice{}
	conflicts := map[gateway.Ref]string{}
	wantServices := map[api.Name]wantedService{}
	for ref := range c.reports {
		g, ok := c.objects.object(ref).(*gateway.Gateway)
		if !ok || len(ports[ref]) == 0 {
			continue
		}
		name := api.Name{Namespace: g.Namespace, Name: serviceName(g.Name.Name)}
		if c.foreign(name, g.UID) {
			conflicts[ref] = fmt.Sprintf("the Service %s exists and is not this Gateway's [delete it, or rename the Gateway]", name.Name)
			continue
		}
		wantServices[name] = c.serve(g, name, ports[ref], table, wantSlices)
	}
	for name, s := range wantServices {
		c.services.Set(name, s)
	}
	for _, name := range c.own.Names() {
		if _, ok := wantServices[name]; !ok && c.ours(name) {
			c.services.Set(name, wantedService{Gone: true})
		}
	}
	for name, s := range wantSlices {
		c.slices.Set(name, s)
	}
	for _, name := range c.ownSlices.Names() {
		if _, ok := wantSlices[name]; !ok {
			c.slices.Set(name, wantedSlice{Gone: true})
		}
	}
	c.publishStatuses(conflicts)
}

// foreign reports whether a Service of that name exists that is not the Gateway's.
func (c *Controller) foreign(name api.Name, uid string) bool {
	if s, ok := c.own.Get(name); ok {
		return s.UID != uid
	}
	_, exists := c.objects.services.Get(name)
	return exists
}

// ours reports whether the controller has made a Service.
func (c *Controller) ours(name api.Name) bool {
	s, ok := c.own.Get(name)
	return ok && s.UID != "" && s.Version != "" && name.Name == serviceName(s.Gateway)
}

// serve returns the Service of a Gateway, and adds its EndpointSlices to all.
func (c *Controller) serve(g *gateway.Gateway, name api.Name, ports []gateway.Port, table *gateway.Table, all map[api.Name]wantedSlice) wantedService {
	of := wantedSlice{Service: name.Name, Gateway: g.Name.Name, UID: g.UID}
	bound, streams := portMap{}, false
	var proxied []service.SlicePort
	add := func(slices map[string]wantedSlice) {
		for n, s := range slices {
			all[api.Name{Namespace: g.Namespace, Name: n}] = s
		}
	}
	for _, p := range ports {
		key := gateway.BindKey{Proto: p.Proto, Port: p.External}
		bound[key] = p.Number
		if p.HTTP || p.TLS {
			proxied = append(proxied, service.SlicePort{Name: portName(key), Proto: p.Proto, Port: p.Number})
			continue
		}
		streams = true
		stream, _ := table.Stream(p.Number, p.Proto)
		byPort, weights := c.objects.streamEndpoints(stream.Backends)
		for number, endpoints := range byPort {
			add(slicesOf(of, fmt.Sprintf("%s-%d", portName(key), number), []service.SlicePort{{Name: portName(key), Proto: p.Proto, Port: number}}, endpoints, weights))
		}
	}
	slices.SortFunc(proxied, func(a, b service.SlicePort) int { return cmp.Compare(a.Name, b.Name) })
	if len(proxied) > 0 {
		var pods []service.SliceEndpoint
		for _, s := range c.objects.slices.Of(api.Name{Namespace: c.cfg.Namespace, Name: ingressService}) {
			for _, e := range s.Endpoints {
				pods = append(pods, bare(e))
			}
		}
		add(slicesOf(of, "gateway", proxied, pods, nil))
	}
	want, meta := wantService(g, bound, streams)
	c.metas.Store(name, meta)
	return want
}

// publishStatuses sets the wanted statuses and reports new problems.
func (c *Controller) publishStatuses(conflicts map[gateway.Ref]string) {
	var addresses []string
	for _, a := range c.ingress.All() {
		addresses = *a
	}
	moved := !slices.Equal(addresses, c.addresses)
	c.addresses = addresses
	for ref := range c.reports {
		if ref.Kind == gateway.KindGateway || moved && ref.Kind == gateway.KindIngress {
			c.stale[ref] = true
		}
	}
	for ref := range c.stale {
		c.publishStatus(ref, conflicts[ref])
	}
	clear(c.stale)
}

func (c *Controller) publishStatus(ref gateway.Ref, conflict string) {
	w, r := c.statuses[ref.Kind], c.reports[ref]
	if w == nil {
		return
	}
	if r == nil {
		delete(c.problems, ref)
		switch ref.Kind {
		case gateway.KindGatewayClass, gateway.KindGateway:
			w.Forget(ref.Name) // another controller's from now on, or gone
		default:
			w.Set(ref.Name, ourStatus{})
		}
		return
	}
	want := statusOf(r)
	switch ref.Kind {
	case gateway.KindGateway:
		c.addAddresses(ref, &want, conflict)
	case gateway.KindIngress:
		want.Balancer = c.addresses
	}
	w.Set(ref.Name, want.of(ref.Kind))
	c.report(ref, r.Problems)
}

// addAddresses adds the addresses of a Gateway's Service to its status. Without an address it is not programmed.
func (c *Controller) addAddresses(ref gateway.Ref, want *ourStatus, conflict string) {
	s, ok := c.own.Get(api.Name{Namespace: ref.Namespace, Name: serviceName(ref.Name.Name)})
	if ok && conflict == "" {
		want.Addresses = s.addresses
	}
	if len(want.Addresses) > 0 {
		return
	}
	reason, message := string(gatewayv1.GatewayReasonAddressNotAssigned), "the Service has no address yet"
	switch {
	case conflict != "":
		reason, message = string(gatewayv1.GatewayReasonInvalid), conflict
	case ok && s.missing != "":
		if g, isGateway := c.objects.object(ref).(*gateway.Gateway); isGateway && len(g.Addresses) > 0 {
			reason = string(gatewayv1.GatewayReasonAddressNotUsable)
		}
		message = s.missing
	}
	for i, cond := range want.Conditions {
		if cond.Type == string(gatewayv1.GatewayConditionProgrammed) && cond.Status == string(metav1.ConditionTrue) {
			want.Conditions[i].Status, want.Conditions[i].Reason, want.Conditions[i].Message = string(metav1.ConditionFalse), reason, message
		}
	}
}

// report writes an event for each new problem of an object.
func (c *Controller) report(ref gateway.Ref, now []api.Problem) {
	was := c.problems[ref]
	if reflect.DeepEqual(was, now) {
		return
	}
	c.problems[ref] = now
	object := c.objects.object(ref)
	if object == nil {
		return
	}
	version := networkingv1.SchemeGroupVersion.String() // of Ingresses
	if k, ok := customKindOf(ref.Kind); ok {
		version = k.resource.GroupVersion().String()
	}
	for _, p := range now {
		if !slices.Contains(was, p) {
			c.events.RouteEvent(corev1.ObjectReference{APIVersion: version, Kind: string(ref.Kind), Namespace: ref.Namespace, Name: ref.Name.Name, UID: types.UID(gateway.UID(object))}, p)
		}
	}
}
