package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/gateway"
	oneline "github.com/fairway-net/fairway/internal/text"
)

// An Overview lists the Gateways of a cluster that are for Fairway, as their statuses describe them.
type Overview struct {
	Pods     Pods           `json:"pods"`
	Gateways []GatewayState `json:"gateways"` // sorted by namespace and name
	// NoGatewayAPI says that the cluster has no CustomResourceDefinitions of Gateway API.
	NoGatewayAPI bool       `json:"noGatewayAPI,omitempty"`
	Ingresses    *Ingresses `json:"ingresses,omitempty"` // nil: no gateway pods, or only the named Gateways are asked for
}

// Ingresses counts the Ingresses that the gateway pods serve.
type Ingresses struct {
	Count     int      `json:"count"`
	Addresses []string `json:"addresses"` // of the Service fairway-ingress
}

// Pods counts the gateway pods.
type Pods struct {
	Installed bool `json:"installed"`
	Wanted    int  `json:"wanted"`
	Available int  `json:"available"`
}

// A GatewayState is the state of one Gateway.
type GatewayState struct {
	Name       string          `json:"name"` // namespace/name
	Class      string          `json:"class"`
	Addresses  []string        `json:"addresses"`
	Programmed bool            `json:"programmed"`
	Reason     string          `json:"reason,omitempty"` // why it is not programmed
	Listeners  []ListenerState `json:"listeners"`
}

// A ListenerState is the state of one listener of a Gateway.
type ListenerState struct {
	Name       string `json:"name"`
	Set        string `json:"listenerSet,omitempty"` // namespace/name; empty: the Gateway's own listener
	Protocol   string `json:"protocol"`
	Port       int    `json:"port"`
	Hostname   string `json:"hostname,omitempty"`
	Routes     int    `json:"routes"`
	Programmed bool   `json:"programmed"`
	Reason     string `json:"reason,omitempty"`
}

// ReadOverview reads the API server once. A cluster without Gateway API has no Gateways.
func ReadOverview(ctx context.Context, client kubernetes.Interface, custom dynamic.Interface, namespace string) (o Overview, err error) {
	lists := map[string][]unstructured.Unstructured{}
	none := false
	for _, resource := range []string{"listenersets", "gatewayclasses", "gateways"} {
		if lists[resource], none, err = listCustom(ctx, custom, resource); err != nil {
			return o, err
		}
	}
	if o, err = NewOverview(lists["gatewayclasses"], lists["gateways"], lists["listenersets"]); err != nil {
		return o, err
	}
	o.NoGatewayAPI = none
	d, err := client.AppsV1().DaemonSets(namespace).Get(ctx, "fairway-gateway", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return o, nil
	case err != nil:
		return o, fmt.Errorf("read the DaemonSet fairway-gateway: %w", oneline.RequestError(err))
	}
	o.Pods = Pods{Installed: true, Wanted: int(d.Status.DesiredNumberScheduled), Available: int(d.Status.NumberAvailable)}
	o.Ingresses, err = readIngresses(ctx, client, namespace)
	return o, err
}

// listCustom lists a resource of Gateway API. An absent resource has no objects.
func listCustom(ctx context.Context, custom dynamic.Interface, resource string) (all []unstructured.Unstructured, none bool, err error) {
	list, err := custom.Resource(standard(resource)).Namespace(corev1.NamespaceAll).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, true, nil
	case err != nil:
		return nil, false, fmt.Errorf("list %s: %w [see --master and --kubeconfig; fairway status --help names the rights]", resource, oneline.RequestError(err))
	}
	return list.Items, false, nil
}

// readIngresses counts the Ingresses of our classes.
func readIngresses(ctx context.Context, client kubernetes.Interface, namespace string) (*Ingresses, error) {
	const advice = "[see --master and --kubeconfig; fairway status --help names the rights]"
	classes, err := client.NetworkingV1().IngressClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ingressclasses: %w %s", oneline.RequestError(err), advice)
	}
	all, err := client.NetworkingV1().Ingresses(corev1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ingresses: %w %s", oneline.RequestError(err), advice)
	}
	s, err := client.CoreV1().Services(namespace).Get(ctx, ingressService, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s = &corev1.Service{}
	case err != nil:
		return nil, fmt.Errorf("read the Service %s: %w %s", ingressService, oneline.RequestError(err), advice)
	}
	c := gateway.NewCompiler(gateway.Settings{Controller: ControllerName})
	for i := range classes.Items {
		c.Set(convertIngressClass(&classes.Items[i]))
	}
	for i := range all.Items {
		c.Set(convertIngress(&all.Items[i]))
	}
	c.Table()
	i := &Ingresses{Addresses: balancerAddresses(s)}
	for ref := range c.Changes() {
		if ref.Kind == gateway.KindIngress {
			i.Count++
		}
	}
	return i, nil
}

// NewOverview reads the statuses of the Gateways of our classes, and of Gateways whose class does not exist.
func NewOverview(classes, gateways, sets []unstructured.Unstructured) (o Overview, err error) {
	ours := map[string]bool{}
	for _, c := range classes {
		name, _, _ := unstructured.NestedString(c.Object, "spec", "controllerName")
		ours[c.GetName()] = name == ControllerName
	}
	for _, u := range gateways {
		g, err := read[gatewayv1.Gateway](&u)
		if err != nil {
			return o, err
		}
		class := string(g.Spec.GatewayClassName)
		if our, exists := ours[class]; our || !exists {
			o.Gateways = append(o.Gateways, gatewayState(g, exists))
		}
	}
	slices.SortFunc(o.Gateways, func(a, b GatewayState) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(sets, func(a, b unstructured.Unstructured) int {
		return strings.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	for _, u := range sets {
		set, err := read[gatewayv1.ListenerSet](&u)
		if err != nil {
			return o, err
		}
		o.addSet(set)
	}
	return o, nil
}

// read reads an object of Gateway API.
func read[T any](u *unstructured.Unstructured) (*T, error) {
	var o T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return nil, fmt.Errorf("read %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), oneline.OneLine(err))
	}
	return &o, nil
}

func gatewayState(g *gatewayv1.Gateway, classExists bool) GatewayState {
	s := GatewayState{Name: g.Namespace + "/" + g.Name, Class: string(g.Spec.GatewayClassName), Addresses: []string{}}
	for _, a := range g.Status.Addresses {
		s.Addresses = append(s.Addresses, a.Value)
	}
	s.Programmed, s.Reason = programmed(g.Status.Conditions, g.Generation, string(gatewayv1.GatewayConditionProgrammed), string(gatewayv1.GatewayConditionAccepted))
	if !classExists {
		s.Programmed, s.Reason = false, fmt.Sprintf("its GatewayClass %q does not exist [kubectl get gatewayclasses]", s.Class)
	}
	for _, l := range g.Spec.Listeners {
		var status gatewayv1.ListenerStatus
		if i := slices.IndexFunc(g.Status.Listeners, func(s gatewayv1.ListenerStatus) bool { return s.Name == l.Name }); i >= 0 {
			status = g.Status.Listeners[i]
		}
		s.Listeners = append(s.Listeners, listenerState(l.Name, l.Protocol, l.Port, l.Hostname, status.AttachedRoutes, status.Conditions, g.Generation))
	}
	return s
}

func listenerState(name gatewayv1.SectionName, protocol gatewayv1.ProtocolType, port gatewayv1.PortNumber, host *gatewayv1.Hostname, routes int32, conditions []metav1.Condition, generation int64) ListenerState {
	s := ListenerState{Name: string(name), Protocol: string(protocol), Port: int(port), Routes: int(routes)}
	if host != nil {
		s.Hostname = string(*host)
	}
	s.Programmed, s.Reason = programmed(conditions, generation, string(gatewayv1.ListenerConditionProgrammed),
		string(gatewayv1.ListenerConditionAccepted), string(gatewayv1.ListenerConditionResolvedRefs), string(gatewayv1.ListenerConditionConflicted))
	return s
}

// addSet adds the listeners of a ListenerSet to its Gateway, except if the Gateway allows no ListenerSets of that namespace.
func (o *Overview) addSet(set *gatewayv1.ListenerSet) {
	p := set.Spec.ParentRef
	parent := orText(p.Namespace, set.Namespace) + "/" + string(p.Name)
	i := slices.IndexFunc(o.Gateways, func(s GatewayState) bool { return s.Name == parent })
	if i < 0 || orText(p.Group, groupGateway) != groupGateway || orText(p.Kind, kindGateway) != kindGateway {
		return
	}
	c := meta.FindStatusCondition(set.Status.Conditions, string(gatewayv1.ListenerSetConditionAccepted))
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason == string(gatewayv1.ListenerSetReasonNotAllowed) {
		return // a problem of the namespace that asks
	}
	for _, l := range set.Spec.Listeners {
		var status gatewayv1.ListenerEntryStatus
		if i := slices.IndexFunc(set.Status.Listeners, func(s gatewayv1.ListenerEntryStatus) bool { return s.Name == l.Name }); i >= 0 {
			status = set.Status.Listeners[i]
		}
		s := listenerState(l.Name, l.Protocol, l.Port, l.Hostname, status.AttachedRoutes, status.Conditions, set.Generation)
		s.Set = set.Namespace + "/" + set.Name
		o.Gateways[i].Listeners = append(o.Gateways[i].Listeners, s)
	}
}

// programmed reads the condition kind of an object with this generation. If it is not true, the reason is that of the
// first cause that is false, or of a conflict, or its own.
func programmed(conditions []metav1.Condition, generation int64, kind string, causes ...string) (ok bool, reason string) {
	c := meta.FindStatusCondition(conditions, kind)
	switch {
	case c == nil || c.Reason == string(gatewayv1.GatewayReasonPending) && c.Status == metav1.ConditionUnknown:
		return false, "no controller has written its status [kubectl -n kube-system get pods -l app.kubernetes.io/name=fairway-controller]"
	case c.ObservedGeneration < generation:
		return false, "the controller has not read its last change"
	case c.Status == metav1.ConditionTrue:
		return true, ""
	}
	for _, cause := range causes {
		bad := metav1.ConditionFalse
		if cause == string(gatewayv1.ListenerConditionConflicted) {
			bad = metav1.ConditionTrue
		}
		if f := meta.FindStatusCondition(conditions, cause); f != nil && f.Status == bad {
			c = f
			break
		}
	}
	return false, strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
}
