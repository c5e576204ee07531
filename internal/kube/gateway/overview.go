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

	oneline "github.com/fairway-net/fairway/internal/text"
)

// An Overview lists the Gateways of a cluster that are for Fairway, as their statuses describe them.
type Overview struct {
	Pods     Pods           `json:"pods"`
	Gateways []GatewayState `json:"gateways"` // sorted by namespace and name
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
	Protocol   string `json:"protocol"`
	Port       int    `json:"port"`
	Hostname   string `json:"hostname,omitempty"`
	Routes     int    `json:"routes"`
	Programmed bool   `json:"programmed"`
	Reason     string `json:"reason,omitempty"`
}

// ReadOverview reads the API server once. A cluster without Gateway API has no Gateways.
func ReadOverview(ctx context.Context, client kubernetes.Interface, custom dynamic.Interface, namespace string) (o Overview, err error) {
	classes, err := listCustom(ctx, custom, "gatewayclasses")
	if err != nil {
		return o, err
	}
	gateways, err := listCustom(ctx, custom, "gateways")
	if err != nil {
		return o, err
	}
	if o, err = NewOverview(classes, gateways); err != nil {
		return o, err
	}
	d, err := client.AppsV1().DaemonSets(namespace).Get(ctx, "fairway-gateway", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return o, nil
	case err != nil:
		return o, fmt.Errorf("read the DaemonSet fairway-gateway: %w", oneline.RequestError(err))
	}
	o.Pods = Pods{Installed: true, Wanted: int(d.Status.DesiredNumberScheduled), Available: int(d.Status.NumberAvailable)}
	return o, nil
}

// listCustom lists a resource of Gateway API. An absent resource has no objects.
func listCustom(ctx context.Context, custom dynamic.Interface, resource string) ([]unstructured.Unstructured, error) {
	list, err := custom.Resource(standard(resource)).Namespace(corev1.NamespaceAll).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w [see --master and --kubeconfig; the command needs the right to list gateways and gatewayclasses]", resource, oneline.RequestError(err))
	}
	return list.Items, nil
}

// NewOverview reads the statuses of the Gateways of our classes, and of Gateways whose class does not exist.
func NewOverview(classes, gateways []unstructured.Unstructured) (o Overview, err error) {
	ours := map[string]bool{}
	for _, c := range classes {
		name, _, _ := unstructured.NestedString(c.Object, "spec", "controllerName")
		ours[c.GetName()] = name == ControllerName
	}
	for _, u := range gateways {
		var g gatewayv1.Gateway
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &g); err != nil {
			return o, fmt.Errorf("read Gateway %s/%s: %w", u.GetNamespace(), u.GetName(), oneline.OneLine(err))
		}
		class := string(g.Spec.GatewayClassName)
		if our, exists := ours[class]; our || !exists {
			o.Gateways = append(o.Gateways, gatewayState(&g, exists))
		}
	}
	slices.SortFunc(o.Gateways, func(a, b GatewayState) int { return strings.Compare(a.Name, b.Name) })
	return o, nil
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
		ls := ListenerState{Name: string(l.Name), Protocol: string(l.Protocol), Port: int(l.Port)}
		if l.Hostname != nil {
			ls.Hostname = string(*l.Hostname)
		}
		var status gatewayv1.ListenerStatus
		if i := slices.IndexFunc(g.Status.Listeners, func(s gatewayv1.ListenerStatus) bool { return s.Name == l.Name }); i >= 0 {
			status = g.Status.Listeners[i]
		}
		ls.Routes = int(status.AttachedRoutes)
		ls.Programmed, ls.Reason = programmed(status.Conditions, g.Generation, string(gatewayv1.ListenerConditionProgrammed),
			string(gatewayv1.ListenerConditionAccepted), string(gatewayv1.ListenerConditionResolvedRefs))
		s.Listeners = append(s.Listeners, ls)
	}
	return s
}

// programmed reads the condition kind of an object with this generation. If it is not true, the reason is that of the
// first cause that is false, or its own.
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
		if f := meta.FindStatusCondition(conditions, cause); f != nil && f.Status == metav1.ConditionFalse {
			c = f
			break
		}
	}
	return false, strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
}
