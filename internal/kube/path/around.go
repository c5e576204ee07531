package path

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

const (
	maxEvents = 20  // that a person reads
	eventPage = 500 // of one Service; the API server sends them in no order
)

// Around has what a person wants to know next to a Service, from its namespace. A part that cannot be read is empty, and
// Problems say why.
type Around struct {
	Pods     map[string]*path.Pod // of the Service, by name
	Policies *networkpolicy.Cluster
	Events   []Event // of the Service, the newest first
	Problems []error
}

// An Event is an event of a Service.
type Event struct {
	Time    time.Time `json:"time,omitzero"` // the last time
	Type    string    `json:"type"`          // "Normal", "Warning"
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int       `json:"count,omitempty"`
}

// Around lists the pods, the policies and the events that concern a Service, once. The pods are those of its selector. A
// Service without a selector has all pods of its namespace.
func (l *Live) Around(ctx context.Context, svc *path.Service) *Around {
	a, o, client, name := &Around{}, &Objects{}, l.client, svc.Name
	failed := func(kind string, err error) bool {
		if err != nil {
			a.Problems = append(a.Problems, fmt.Errorf("list %s: %w", kind, text.RequestError(err)))
		}
		return err != nil
	}
	pods := pages(ctx, client.CoreV1().Pods(name.Namespace).List, func(l *corev1.PodList) { o.Pods = append(o.Pods, l.Items...) })
	failed("pods", eachPage(func(options metav1.ListOptions) (string, error) {
		options.LabelSelector = labels.Set(svc.Selector).String()
		return pods(options)
	}))
	failed("networkpolicies", eachPage(pages(ctx, client.NetworkingV1().NetworkPolicies(name.Namespace).List, func(l *networkingv1.NetworkPolicyList) { o.Policies = append(o.Policies, l.Items...) })))
	if ns, err := client.CoreV1().Namespaces().Get(ctx, name.Namespace, metav1.GetOptions{}); !failed("namespaces", err) {
		o.Namespaces = append(o.Namespaces, *ns)
	}
	if wide, err := l.custom.Resource(kube.ClusterNetworkPolicies).List(ctx, metav1.ListOptions{}); err == nil {
		o.ClusterPolicies = wide.Items
	} else if !apierrors.IsNotFound(err) {
		failed(kube.ClusterNetworkPolicies.Resource, err)
	}
	about := fields.Set{"involvedObject.kind": "Service", "involvedObject.name": name.Name}.AsSelector().String()
	events, err := client.CoreV1().Events(name.Namespace).List(ctx, metav1.ListOptions{FieldSelector: about, Limit: eventPage})
	if !failed("events", err) {
		a.Events = convertEvents(events.Items)
	}
	c := o.Cluster(func(kube.Node) service.Node { return service.Node{} })
	a.Policies, a.Pods = c.Policies, map[string]*path.Pod{}
	for _, p := range c.Pods {
		a.Pods[p.Name.Name] = p
	}
	return a
}

// eachPage calls list for each page of a kind.
func eachPage(list func(metav1.ListOptions) (next string, err error)) error {
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		next, err := list(options)
		if err != nil || next == "" {
			return err
		}
		options.Continue = next
	}
}

// convertEvents returns the newest events. Each recorder fills other fields of the time and the count.
func convertEvents(all []corev1.Event) []Event {
	var events []Event
	for i := range all {
		x := &all[i]
		e := Event{Time: x.LastTimestamp.Time, Type: x.Type, Reason: x.Reason, Message: x.Message, Count: int(x.Count)}
		if s := x.Series; s != nil {
			e.Time, e.Count = s.LastObservedTime.Time, int(s.Count)
		}
		for _, t := range []time.Time{x.EventTime.Time, x.FirstTimestamp.Time, x.CreationTimestamp.Time} {
			if e.Time.IsZero() {
				e.Time = t
			}
		}
		events = append(events, e)
	}
	slices.SortStableFunc(events, func(a, b Event) int { return b.Time.Compare(a.Time) })
	return events[:min(len(events), maxEvents)]
}
