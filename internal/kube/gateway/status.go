package gateway

import (
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// ControllerName is the name of our GatewayClasses' controller, and of our entries in the statuses of routes.
const ControllerName = "fairway.net/gateway"

// A status is our part of an object's status, and what a write has to keep of the others' parts.
type status struct {
	ours    ourStatus
	version string // resourceVersion of the object that was read
	// foreign are the entries of other controllers: parents of a route, ancestors of a policy, conditions with a domain.
	foreign []any
	// since has the transition times of our conditions, by place.
	since map[place]string
}

// ourStatus is our part of an object's status, in the form that is compared.
type ourStatus struct {
	Conditions []condition
	Listeners  []listenerStatus
	Parents    []parentStatus
	Addresses  []string // of a Gateway
	Sets       int      // of a Gateway: attached ListenerSets
	Features   []string // of a GatewayClass
	Balancer   []string // of an Ingress: the addresses
}

// A condition is a condition without its transition time.
type condition struct {
	Type, Status, Reason, Message string
	Generation                    int64
}

type listenerStatus struct {
	Name       string
	Kinds      []gateway.GroupKind
	Attached   int
	Conditions []condition
}

type parentStatus struct {
	Parent     gateway.ObjectRef
	Conditions []condition
}

// A place is where a condition is in a status.
type place struct {
	listener string
	parent   gateway.ObjectRef
	kind     string // of the condition
	status   string
}

// maxMessage is the API server's limit for a condition's message, in bytes.
const maxMessage = 32768

// wireStatus has the fields of all statuses of Gateway API.
type wireStatus struct {
	Addresses            []gatewayv1.GatewayStatusAddress `json:"addresses"`
	Conditions           []metav1.Condition               `json:"conditions"`
	Listeners            []gatewayv1.ListenerStatus       `json:"listeners"`
	AttachedListenerSets int                              `json:"attachedListenerSets"`
	Parents              []gatewayv1.RouteParentStatus    `json:"parents"`
	Ancestors            []gatewayv1.PolicyAncestorStatus `json:"ancestors"`
	SupportedFeatures    []gatewayv1.SupportedFeature     `json:"supportedFeatures"`
}

// readStatus reads the status of an object of Gateway API. An unreadable status is overwritten.
func readStatus(kind gateway.Kind, o *unstructured.Unstructured) *status {
	s := &status{version: o.GetResourceVersion(), since: map[place]string{}}
	m, _, _ := unstructured.NestedMap(o.Object, "status")
	var wire wireStatus
	if runtime.DefaultUnstructuredConverter.FromUnstructured(m, &wire) != nil {
		return s
	}
	s.ours.Conditions = s.conditions(place{}, slices.DeleteFunc(wire.Conditions, func(c metav1.Condition) bool { return foreignCondition(c.Type) }))
	for _, l := range wire.Listeners {
		ls := listenerStatus{Name: string(l.Name), Attached: int(l.AttachedRoutes), Conditions: s.conditions(place{listener: string(l.Name)}, l.Conditions)}
		for _, k := range l.SupportedKinds {
			ls.Kinds = append(ls.Kinds, groupKind(orText(k.Group, groupGateway), string(k.Kind)))
		}
		s.ours.Listeners = append(s.ours.Listeners, ls)
	}
	s.ours.Sets = wire.AttachedListenerSets
	for _, a := range wire.Addresses {
		s.ours.Addresses = append(s.ours.Addresses, a.Value)
	}
	for _, f := range wire.SupportedFeatures {
		s.ours.Features = append(s.ours.Features, string(f.Name))
	}
	for _, p := range wire.Parents {
		s.parent(p.ControllerName, p.ParentRef, p.Conditions)
	}
	for _, a := range wire.Ancestors {
		s.parent(a.ControllerName, a.AncestorRef, a.Conditions)
	}
	s.foreign = foreignEntries(m, kind)
	return s
}

// foreignCondition reports whether a condition is of another controller, which names its own conditions with a domain.
func foreignCondition(kind string) bool { return strings.Contains(kind, "/") }

// foreignEntries returns the entries of other controllers in the list that a kind's controllers share.
func foreignEntries(status map[string]any, kind gateway.Kind) []any {
	field := "parents"
	switch kind {
	case gateway.KindGatewayClass, gateway.KindGateway, gateway.KindListenerSet:
		field = "conditions"
	case gateway.KindBackendTLSPolicy, gateway.KindRoutePolicy:
		field = "ancestors"
	}
	all, _ := status[field].([]any)
	return slices.DeleteFunc(slices.Clone(all), func(e any) bool {
		m, ok := e.(map[string]any)
		if !ok {
			return true
		}
		if field == "conditions" {
			name, _ := m["type"].(string)
			return !foreignCondition(name)
		}
		return m["controllerName"] == ControllerName
	})
}

func (s *status) parent(controller gatewayv1.GatewayController, ref gatewayv1.ParentReference, conditions []metav1.Condition) {
	if controller != ControllerName {
		return
	}
	parent := parentRefs([]gatewayv1.ParentReference{ref})[0]
	s.ours.Parents = append(s.ours.Parents, parentStatus{Parent: parent, Conditions: s.conditions(place{parent: parent}, conditions)})
}

// conditions reads conditions and keeps their transition times.
func (s *status) conditions(at place, all []metav1.Condition) (out []condition) {
	for _, c := range all {
		at.kind, at.status = c.Type, string(c.Status)
		s.since[at] = c.LastTransitionTime.UTC().Format(time.RFC3339)
		out = append(out, condition{c.Type, string(c.Status), c.Reason, c.Message, c.ObservedGeneration})
	}
	return out
}

func readIngressStatus(o *networkingv1.Ingress) *status {
	s := &status{version: o.ResourceVersion}
	for _, i := range o.Status.LoadBalancer.Ingress {
		s.ours.Balancer = append(s.ours.Balancer, i.IP)
	}
	return s
}

// statusOf returns the status that a report asks for.
func statusOf(r *gateway.Report) ourStatus {
	s := ourStatus{Conditions: conditionsOf(r.Generation, r.Conditions), Sets: r.Sets, Features: r.Features}
	for _, l := range r.Listeners {
		s.Listeners = append(s.Listeners, listenerStatus{Name: l.Name, Kinds: l.Kinds, Attached: l.Attached, Conditions: conditionsOf(r.Generation, l.Conditions)})
	}
	for _, p := range r.Parents {
		s.Parents = append(s.Parents, parentStatus{Parent: p.Parent, Conditions: conditionsOf(r.Generation, p.Conditions)})
	}
	return s
}

func conditionsOf(generation int64, all []gateway.Condition) (out []condition) {
	for _, c := range all {
		status := metav1.ConditionFalse
		if c.Status {
			status = metav1.ConditionTrue
		}
		out = append(out, condition{c.Type, string(status), c.Reason, api.Cut(c.Message, maxMessage), generation})
	}
	return out
}

// of returns the fields that a kind's status has.
func (o ourStatus) of(kind gateway.Kind) ourStatus {
	switch kind {
	case gateway.KindGatewayClass:
		return ourStatus{Conditions: o.Conditions, Features: o.Features}
	case gateway.KindGateway:
		return ourStatus{Conditions: o.Conditions, Listeners: o.Listeners, Addresses: o.Addresses, Sets: o.Sets}
	case gateway.KindListenerSet:
		return ourStatus{Conditions: o.Conditions, Listeners: o.Listeners}
	case gateway.KindIngress:
		return ourStatus{Balancer: o.Balancer}
	}
	return ourStatus{Parents: o.Parents}
}

// wire returns a status as the API has it, for a merge patch. was is the status that was read; it may be nil.
func (o ourStatus) wire(kind gateway.Kind, was *status, now time.Time) map[string]any {
	w := statusWriter{since: map[place]string{}, now: now.UTC().Format(time.RFC3339)}
	var foreign []any
	if was != nil {
		w.since, foreign = was.since, was.foreign
	}
	switch kind {
	case gateway.KindGatewayClass:
		features := []any{}
		for _, f := range o.Features {
			features = append(features, map[string]any{"name": f})
		}
		return map[string]any{"conditions": append(w.conditions(place{}, o.Conditions), foreign...), "supportedFeatures": features}
	case gateway.KindGateway:
		return map[string]any{"conditions": append(w.conditions(place{}, o.Conditions), foreign...), "listeners": w.listeners(o.Listeners),
			"addresses": addressEntries(o.Addresses), "attachedListenerSets": o.Sets}
	case gateway.KindListenerSet:
		return map[string]any{"conditions": append(w.conditions(place{}, o.Conditions), foreign...), "listeners": w.listeners(o.Listeners)}
	case gateway.KindBackendTLSPolicy, gateway.KindRoutePolicy:
		return map[string]any{"ancestors": append(w.parents("ancestorRef", o.Parents), foreign...)}
	case gateway.KindIngress:
		return map[string]any{"loadBalancer": map[string]any{"ingress": balancerEntries(o.Balancer)}}
	}
	return map[string]any{"parents": append(w.parents("parentRef", o.Parents), foreign...)}
}

func addressEntries(all []string) []any {
	out := []any{}
	for _, a := range all {
		out = append(out, map[string]any{"type": string(gatewayv1.IPAddressType), "value": a})
	}
	return out
}

func balancerEntries(all []string) []any {
	out := []any{}
	for _, a := range all {
		out = append(out, map[string]any{"ip": a})
	}
	return out
}

// A statusWriter writes the parts of a status.
type statusWriter struct {
	since map[place]string
	now   string
}

func (w statusWriter) conditions(at place, all []condition) []any {
	out := []any{}
	for _, c := range all {
		at.kind, at.status = c.Type, c.Status
		since := w.since[at]
		if since == "" {
			since = w.now
		}
		out = append(out, map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"observedGeneration": c.Generation, "lastTransitionTime": since})
	}
	return out
}

func (w statusWriter) listeners(all []listenerStatus) []any {
	out := []any{}
	for _, l := range all {
		kinds := []any{}
		for _, k := range l.Kinds {
			kinds = append(kinds, map[string]any{"group": k.Group, "kind": k.Kind})
		}
		out = append(out, map[string]any{"name": l.Name, "supportedKinds": kinds, "attachedRoutes": l.Attached,
			"conditions": w.conditions(place{listener: l.Name}, l.Conditions)})
	}
	return out
}

func (w statusWriter) parents(field string, all []parentStatus) []any {
	out := []any{}
	for _, p := range all {
		out = append(out, map[string]any{field: refEntry(p.Parent), "controllerName": ControllerName, "conditions": w.conditions(place{parent: p.Parent}, p.Conditions)})
	}
	return out
}

// refEntry writes a reference to a parent with the fields that the user wrote.
func refEntry(r gateway.ObjectRef) map[string]any {
	m := map[string]any{"group": r.Group, "kind": r.Kind, "name": r.Name}
	if r.Namespace != "" {
		m["namespace"] = r.Namespace
	}
	if r.Section != "" {
		m["sectionName"] = r.Section
	}
	if r.Port != 0 {
		m["port"] = r.Port
	}
	return m
}
