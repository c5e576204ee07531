package loadbalancer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// A balancerWriter writes the statuses of Services of type LoadBalancer.
type balancerWriter struct {
	*kube.StatusWriter[balancerStatus]
	store     *kube.Store
	balancers *kube.Feed[Balancer]
}

func newBalancerWriter(log *slog.Logger, s *kube.Store, balancers *kube.Feed[Balancer]) *balancerWriter {
	w := &balancerWriter{store: s, balancers: balancers}
	w.StatusWriter = kube.NewStatusWriter(kube.StatusConfig[balancerStatus]{Log: log, Owner: balancerOwner, Kind: "services", Have: w.current, Apply: w.apply})
	return w
}

// current returns a Service's status, for the comparison with the wanted status. Our annotation only counts if the
// Service has an address.
func (w *balancerWriter) current(name api.Name) (balancerStatus, bool) {
	b, ok := w.balancers.Get(name)
	if !ok {
		return balancerStatus{}, false
	}
	s := b.status
	if len(s.Addrs) == 0 {
		s.Pool, s.Mode = "", ""
	}
	return s, true
}

// apply writes a Service's status, annotation and finalizer.
func (w *balancerWriter) apply(ctx context.Context, name api.Name, want balancerStatus, how metav1.ApplyOptions) error {
	body := map[string]any{
		"apiVersion": "v1", "kind": "Service",
		"metadata": want.metadata(name),
		"status":   want.status(),
	}
	if b, ok := w.balancers.Get(name); ok && !b.Wanted && len(b.status.Addrs) == 0 {
		delete(body, "status") // Services of other types have no such status
	}
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the status of Service %v: %w", name, err)
	}
	_, err = w.store.Config().Client.CoreV1().Services(name.Namespace).Patch(ctx, name.Name, types.ApplyPatchType, data,
		metav1.PatchOptions{FieldManager: how.FieldManager, Force: &how.Force}, "status")
	return err
}

func (s balancerStatus) metadata(name api.Name) map[string]any {
	m := map[string]any{"name": name.Name, "namespace": name.Namespace}
	if s.Held {
		m["finalizers"] = []string{BalancerFinalizer}
	}
	if s.Pool != "" {
		m["annotations"] = map[string]string{metallbPrefix + annotationFrom: s.Pool}
	}
	return m
}

func (s balancerStatus) status() map[string]any {
	m := map[string]any{"loadBalancer": map[string]any{"ingress": s.ingress()}}
	if all := s.conditions(); all != nil {
		m["conditions"] = all
	}
	return m
}

func (s balancerStatus) ingress() []corev1.LoadBalancerIngress {
	all := []corev1.LoadBalancerIngress{}
	for _, addr := range s.Addrs {
		i := corev1.LoadBalancerIngress{IP: addr.String(), IPMode: &s.Mode}
		for _, p := range s.Ports {
			i.Ports = append(i.Ports, corev1.PortStatus{Port: int32(p.Port), Protocol: corev1.Protocol(p.Proto.String())})
		}
		all = append(all, i)
	}
	return all
}

// conditionMissing is a condition of a Service that lacks an address. Its message is the reason, which an event tells too,
// for an hour.
const conditionMissing = "fairway.net/AddressMissing"

// missingAddress reads the condition.
func missingAddress(all []metav1.Condition) string {
	for _, c := range all {
		if c.Type == conditionMissing && c.Status == metav1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// conditions returns our conditions of a status; nil removes them.
func (s balancerStatus) conditions() (all []metav1.Condition) {
	add := func(kind, reason, message string) {
		all = append(all, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.Time{Time: time.Now()}})
	}
	if s.OnNodes {
		add(kube.ConditionOnNodes, kube.ReasonOnNodes, "each address is served only on the node that has it")
	}
	if len(s.Leaving) > 0 {
		texts := make([]string, len(s.Leaving))
		for i, a := range s.Leaving {
			texts[i] = a.String()
		}
		add(kube.ConditionLeaving, kube.ReasonLeaving, strings.Join(texts, " "))
	}
	if s.Missing != "" {
		add(conditionMissing, ipam.ReasonFailed, s.Missing)
	}
	return all
}

// reportDecision reports a decision to the Service's owner.
func reportDecision(log *slog.Logger, events *kube.Recorder, d ipam.Decision) {
	for _, e := range d.Events {
		attrs := []any{"service", d.Name.String(), "reason", e.Reason, "message", e.Message}
		if e.Warning {
			log.Warn("a Service has a problem with its addresses", attrs...)
			events.Event(d.Name, api.Problem{Reason: e.Reason, Message: e.Message})
		} else {
			log.Info("addresses of a Service changed", attrs...)
			events.Inform(d.Name, e.Reason, e.Message)
		}
	}
}
