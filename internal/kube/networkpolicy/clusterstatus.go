package networkpolicy

import (
	"context"
	"log/slog"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// The conditions of a ClusterNetworkPolicy and their reasons. The API defines no names, so they have the names that
// Kubernetes once had for NetworkPolicies (KEP-2943, docs/decisions/0035).
const (
	conditionAccepted       = "Accepted"
	conditionPartialFailure = "PartialFailure"
	reasonAccepted          = "Accepted"
	reasonPartlyAccepted    = "PartiallyAccepted"
	reasonFeature           = "FeatureNotSupported"
	reasonInvalid           = "Invalid"
)

// policyStatusOwner is the field manager of these conditions.
const policyStatusOwner = "fairway-policies"

// conditionMessageLimit is the API server's limit for a condition's message, in bytes.
const conditionMessageLimit = 32768

// A condition is one of our conditions, without its transition time.
type condition struct {
	Type, Status, Reason, Message string
	Generation                    int64 // of the object that was read
}

// A policyStatus is the current and the wanted status of a ClusterNetworkPolicy.
type policyStatus struct {
	have, want []condition
	since      map[condition]string // by type and status: the transition time
}

// Statuses writes the conditions of ClusterNetworkPolicies: whether this version understands them. The conditions
// say nothing about single nodes. Only the elected controller runs it.
type Statuses struct {
	store  *kube.Store
	feed   *kube.Feed[policyStatus]
	writer *kube.StatusWriter[[]condition]
}

// NewStatuses returns the writer of these conditions. The store must run too, and needs Config.Custom. The writer
// does not wait for an absent kind.
func NewStatuses(log *slog.Logger, s *kube.Store) *Statuses {
	p := &Statuses{store: s}
	p.feed = kube.Open(s, kube.Kind[*unstructured.Unstructured, policyStatus]{
		Name: kube.ClusterNetworkPolicies.Resource, Without: "ClusterNetworkPolicies get no status", Object: &unstructured.Unstructured{},
		Client: kube.From(s.Config().Custom.Resource(kube.ClusterNetworkPolicies)), Trim: convertPolicyStatus,
	})
	p.writer = kube.NewStatusWriter(kube.StatusConfig[[]condition]{Log: log, Owner: policyStatusOwner, Kind: kube.ClusterNetworkPolicies.Resource, Apply: p.apply,
		Have: func(name api.Name) ([]condition, bool) {
			o, ok := p.feed.Get(name)
			return ptr.Deref(o, policyStatus{}).have, ok
		},
	})
	p.feed.Follow(func(name api.Name, _, now *policyStatus, _ int64) {
		if now == nil {
			p.writer.Forget(name)
			return
		}
		p.writer.Set(name, now.want)
	})
	return p
}

// Run writes until ctx ends, which is no error.
func (p *Statuses) Run(ctx context.Context) error { return p.writer.Run(ctx) }

// convertPolicyStatus reads the current status and computes the wanted status.
func convertPolicyStatus(o *unstructured.Unstructured) *policyStatus {
	s := &policyStatus{want: conditionsOf(ConvertClusterPolicy(o), o.GetGeneration()), since: map[condition]string{}}
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	m, _, err := unstructured.NestedMap(o.Object, "status")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(m, &status)
	}
	if err != nil {
		return s // an unreadable status is overwritten
	}
	for _, c := range status.Conditions {
		if c.Type != conditionAccepted && c.Type != conditionPartialFailure {
			continue
		}
		s.have = append(s.have, condition{c.Type, string(c.Status), c.Reason, c.Message, c.ObservedGeneration})
		s.since[condition{Type: c.Type, Status: string(c.Status)}] = c.LastTransitionTime.UTC().Format(time.RFC3339)
	}
	return s
}

// conditionsOf returns the conditions of a policy, sorted by type.
func conditionsOf(p *networkpolicy.ClusterPolicy, generation int64) []condition {
	reason, text := reasonFeature, api.Cut(strings.Join(p.Problems, "; "), conditionMessageLimit)
	if p.Invalid {
		reason = reasonInvalid
	}
	switch {
	case len(p.Problems) == 0:
		return []condition{{conditionAccepted, "True", reasonAccepted, "it is enforced as it is written", generation}}
	case p.Subject.Namespaces == nil:
		return []condition{{conditionAccepted, "False", reason, text, generation}}
	}
	return []condition{
		{conditionAccepted, "True", reasonPartlyAccepted, "it is enforced except for the parts in " + conditionPartialFailure, generation},
		{conditionPartialFailure, "True", reason, text, generation},
	}
}

// apply writes the conditions by server-side apply. The conditions of other owners stay.
func (p *Statuses) apply(ctx context.Context, name api.Name, want []condition, how metav1.ApplyOptions) error {
	now := time.Now().UTC().Format(time.RFC3339)
	was, _ := p.feed.Get(name)
	all := []any{}
	for _, c := range want {
		since := now
		if t := ptr.Deref(was, policyStatus{}).since[condition{Type: c.Type, Status: c.Status}]; t != "" {
			since = t
		}
		all = append(all, map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"observedGeneration": c.Generation, "lastTransitionTime": since})
	}
	return p.store.ApplyStatus(ctx, kube.ClusterNetworkPolicies, "ClusterNetworkPolicy", name, how, nil, map[string]any{"conditions": all})
}
