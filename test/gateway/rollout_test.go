package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestRollout: no request fails while the pods of the backend or of the gateway are replaced, while the backend's pods are
// killed, and during 1,000 changes of the route.
func TestRollout(t *testing.T) {
	b := newPolicyBench(t)
	echo, gateway := workload("Deployment", "policies", "echo"), workload("DaemonSet", "kube-system", "fairway-gateway")
	for _, one := range []struct {
		name string
		do   func(*policyBench)
	}{
		{"backend", func(b *policyBench) { b.restart(echo) }},
		{"gateway", func(b *policyBench) { b.restart(gateway) }},
		{"killed backend", func(b *policyBench) { b.kill(echo) }},
		{"changes", (*policyBench).change},
	} {
		t.Run(one.name, func(t *testing.T) {
			b := b.with(t)
			l := b.load()
			one.do(b)
			before := l.requests.Load()
			b.until("more requests", func() string { return fmt.Sprint(l.requests.Load() > before+1000) }, "true")
			l.end()
		})
	}
}

func workload(kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": kind}}
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// restart replaces the pods of a workload, as kubectl rollout restart does.
func (b *policyBench) restart(o *unstructured.Unstructured) {
	b.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	if err := b.Patch(b.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		b.Fatal(err)
	}
	b.until("the rollout", func() string { return b.rollout(o) }, "done")
}

// kill kills two pods of a Deployment, the second one after the first was replaced.
func (b *policyBench) kill(o *unstructured.Unstructured) {
	b.Helper()
	killed := map[string]bool{}
	for range 2 {
		pods := b.pods(o)
		for name := range pods {
			if killed[name] {
				b.Fatalf("pod %s is still there", name)
			}
		}
		for name := range pods {
			killed[name] = true
			pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod"}}
			pod.SetNamespace(o.GetNamespace())
			pod.SetName(name)
			if err := b.Delete(b.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
				b.Fatal(err)
			}
			break
		}
		b.until("ready pods", func() string {
			ready := 0
			for name, is := range b.pods(o) {
				if is && !killed[name] {
					ready++
				}
			}
			return fmt.Sprint(ready)
		}, "2")
	}
}

// pods returns the pods of a Deployment, and whether each is ready.
func (b *policyBench) pods(o *unstructured.Unstructured) map[string]bool {
	b.Helper()
	var pods corev1.PodList
	if err := b.List(b.Context(), &pods, client.InNamespace(o.GetNamespace()), client.MatchingLabels{"app": o.GetName()}); err != nil {
		b.Fatal(err)
	}
	all := map[string]bool{}
	for _, p := range pods.Items {
		all[p.Name] = slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	}
	return all
}

// change changes a header of the route's first rule 1,000 times. The last change takes effect.
func (b *policyBench) change() {
	b.Helper()
	o := b.get("gateway.networking.k8s.io/v1", "HTTPRoute", "web")
	const changes = 1000
	for i := range changes {
		patch := fmt.Sprintf(`[{"op":"add","path":"/spec/rules/0/filters","value":[{"type":"ResponseHeaderModifier","responseHeaderModifier":{"set":[{"name":"X-Change","value":"%d"}]}}]}]`, i+1)
		if err := b.Patch(b.Context(), o, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
			b.Fatal(err)
		}
	}
	b.until("the last change", func() string { _, _, h := b.ask("GET", "/open", nil); return h.Get("X-Change") }, fmt.Sprint(changes))
}

// rollout returns "done" if all pods of a workload are new, and no old pod is left.
func (b *policyBench) rollout(o *unstructured.Unstructured) string {
	b.Helper()
	if err := b.Get(b.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		b.Fatal(err)
	}
	var is struct {
		Metadata struct{ Generation int64 }
		Spec     struct{ Replicas int }
		Status   struct {
			ObservedGeneration                                                                  int64
			Replicas, UpdatedReplicas, AvailableReplicas                                        int
			DesiredNumberScheduled, UpdatedNumberScheduled, NumberAvailable, NumberMisscheduled int
		}
	}
	text, err := json.Marshal(o.Object)
	if err == nil {
		err = json.Unmarshal(text, &is)
	}
	if err != nil {
		b.Fatal(err)
	}
	s := is.Status
	want, pods := max(is.Spec.Replicas, s.DesiredNumberScheduled), max(s.Replicas, s.DesiredNumberScheduled)
	if s.ObservedGeneration == is.Metadata.Generation && pods == want && max(s.UpdatedReplicas, s.UpdatedNumberScheduled) == want &&
		max(s.AvailableReplicas, s.NumberAvailable) == want {
		return "done"
	}
	return fmt.Sprintf("%+v", s)
}

// A load is clients that send requests one after the other.
type load struct {
	b                *policyBench
	stop             chan struct{}
	clients          sync.WaitGroup
	requests, failed atomic.Int64
}

// load starts ten clients with kept connections, and ten with a new connection for each request.
func (b *policyBench) load() *load {
	l := &load{b: b, stop: make(chan struct{})}
	for i := range 20 {
		l.clients.Go(func() { l.client(i%2 == 0) })
	}
	b.Cleanup(l.clients.Wait)
	return l
}

func (l *load) client(keep bool) {
	tr := &http.Transport{DisableKeepAlives: !keep}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	for {
		select {
		case <-l.stop:
			return
		case <-l.b.Context().Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
		l.requests.Add(1)
		if text := ask(c, l.b.base+"/open"); text != "" && l.failed.Add(1) <= 20 {
			l.b.Errorf("%v: %s", time.Now().Format(time.TimeOnly), text)
		}
	}
}

// ask returns why a request failed; empty: it did not.
func ask(c *http.Client, url string) string {
	resp, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprintf("status %d: %s", resp.StatusCode, text)
	}
	return ""
}

// end ends the load, and reports it.
func (l *load) end() {
	close(l.stop)
	l.clients.Wait()
	l.b.Logf("%d requests, %d failed", l.requests.Load(), l.failed.Load())
}
