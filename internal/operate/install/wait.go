package install

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fairway-net/fairway/internal/kube/objects"
	"github.com/fairway-net/fairway/internal/text"
)

// waitFor waits until each DaemonSet and Deployment among the objects runs, and prints the progress.
func (i *Installer) waitFor(ctx context.Context, all []*unstructured.Unstructured) error {
	for _, o := range workloads(all) {
		if err := i.waitReady(ctx, objects.RefOf(o)); err != nil {
			return err
		}
	}
	return nil
}

// waitReady waits for one workload. It prints each obstacle of its pods once, and the error has them if ctx ends.
func (i *Installer) waitReady(ctx context.Context, ref objects.Ref) error {
	said := ""
	troubles := map[string]bool{}
	err := i.until(ctx, func(ctx context.Context) (bool, error) {
		o, err := i.API.Get(ctx, ref)
		if err != nil || o == nil {
			return false, err
		}
		p := progressOf(o)
		if data := p.String(); data != said {
			i.say("%s: %s", ref, data)
			said = data
		}
		if p.done() {
			return true, nil
		}
		now, err := i.troubles(ctx, o)
		for data := range now {
			if !troubles[data] {
				i.say("  %s", data)
			}
		}
		troubles = now
		return false, err
	})
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w%s", ref, said, err, suffix(troubles))
}

// suffix returns troubles as the end of an error.
func suffix(troubles map[string]bool) string {
	if len(troubles) == 0 {
		return ""
	}
	return ": " + strings.Join(slices.Sorted(maps.Keys(troubles)), "; ")
}

// A progress is the state of a workload's rollout.
type progress struct {
	seen                   bool // the controller has seen the last change
	wanted, updated, ready int64
}

func (p progress) done() bool { return p.seen && p.updated == p.wanted && p.ready == p.wanted }

func (p progress) String() string {
	if !p.seen {
		return "waits for its controller"
	}
	return fmt.Sprintf("%d of %d updated, %d ready", p.updated, p.wanted, p.ready)
}

func progressOf(o *unstructured.Unstructured) progress {
	number := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(o.Object, path...)
		return n
	}
	p := progress{seen: number("status", "observedGeneration") >= o.GetGeneration()}
	if o.GetKind() == "DaemonSet" {
		p.wanted, p.updated, p.ready = number("status", "desiredNumberScheduled"), number("status", "updatedNumberScheduled"), number("status", "numberReady")
		return p
	}
	p.wanted, p.updated, p.ready = number("spec", "replicas"), number("status", "updatedReplicas"), number("status", "readyReplicas")
	if number("status", "replicas") > p.wanted {
		p.ready = min(p.ready, p.wanted-1) // pods of the old template remain
	}
	return p
}

// podsOf lists the pods that a workload has made. Its selector only makes the list short.
func (i *Installer) podsOf(ctx context.Context, o *unstructured.Unstructured) ([]corev1.Pod, error) {
	selector, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
	pods, err := list[corev1.Pod](ctx, i.API, "v1", "Pod", o.GetNamespace(), labels.Set(selector).String())
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !owns(objects.RefOf(o), &p) }), err
}

// podsOnNodes lists the pods of a workload without pods of deleted nodes. Nobody ends those: the API server's garbage
// collector removes them after a minute.
func (i *Installer) podsOnNodes(ctx context.Context, o *unstructured.Unstructured) ([]corev1.Pod, error) {
	pods, err := i.podsOf(ctx, o)
	if err != nil || len(pods) == 0 {
		return pods, err
	}
	nodes, err := list[corev1.Node](ctx, i.API, "v1", "Node", "", "")
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool {
		return p.Spec.NodeName != "" && !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == p.Spec.NodeName })
	}), err
}

// troubles returns what keeps a workload's pods from running, in the kubelet's words.
func (i *Installer) troubles(ctx context.Context, o *unstructured.Unstructured) (map[string]bool, error) {
	pods, err := i.podsOf(ctx, o)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, p := range pods {
		if why := unscheduled(p, time.Now()); why != "" {
			found["pod "+p.Name+": "+why] = true
		}
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if why := troubleOf(s); why != "" {
				found["pod "+p.Name+" on "+p.Spec.NodeName+": "+why] = true
			}
		}
	}
	return found, nil
}

// patience is how long a pod may wait for a node before a message. Nodes may still be joining.
const patience = 10 * time.Second

// unscheduled returns why the scheduler finds no node for a pod. It returns "" if the pod has a node or has not waited
// for long.
func unscheduled(p corev1.Pod, now time.Time) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && now.Sub(c.LastTransitionTime.Time) >= patience {
			return c.Reason + ": " + text.LastLine(c.Message)
		}
	}
	return ""
}

// troubleOf returns "" for a container that runs or starts.
func troubleOf(s corev1.ContainerStatus) string {
	w := s.State.Waiting
	if w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" {
		return ""
	}
	data := w.Reason
	if last := s.LastTerminationState.Terminated; last != nil && last.Message != "" {
		return data + ": " + text.LastLine(last.Message)
	}
	return data + ": " + text.LastLine(w.Message)
}

// waitGone waits until the workloads have no pods.
func (i *Installer) waitGone(ctx context.Context, gone []*unstructured.Unstructured) error {
	for _, o := range workloads(gone) {
		said := -1
		err := i.until(ctx, func(ctx context.Context) (bool, error) {
			pods, err := i.podsOnNodes(ctx, o)
			if err == nil && len(pods) != said {
				said = len(pods)
				i.say("%s: %d pods left", objects.RefOf(o), said)
			}
			return err == nil && len(pods) == 0, err
		})
		if err != nil {
			return fmt.Errorf("wait for the pods of %s to end: %w", objects.RefOf(o), err)
		}
	}
	return nil
}
