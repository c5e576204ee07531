package kube

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// weighted is a Service of the pods of the app that asks for their weights.
func weighted(name, ip, app string) *corev1.Service {
	o := apiService(name, ip)
	o.Annotations = map[string]string{"fairway.net/weights": "true"}
	o.Spec.Selector = map[string]string{"app": app}
	return o
}

func apiPod(name, app, ip, weight string) *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": app}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
	if weight != "" {
		o.Annotations = map[string]string{"fairway.net/weight": weight}
	}
	return o
}

// weighed is a slice as the controller leaves it.
func weighed(s *discoveryv1.EndpointSlice, weights string) *discoveryv1.EndpointSlice {
	s.Annotations = map[string]string{"fairway.net/endpoint-weights": weights}
	return s
}

// ofPods makes the endpoints of a slice refer to pods, in their order.
func ofPods(s *discoveryv1.EndpointSlice, pods ...string) *discoveryv1.EndpointSlice {
	for i, name := range pods {
		s.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name}
	}
	return s
}

// weightsOf writes a Service's endpoints as "10.0.0.1*3 10.0.0.2", sorted.
func weightsOf(s *source, name api.Name) string {
	var out []string
	for _, slice := range s.Slices(name) {
		for _, e := range slice.Endpoints {
			text := e.Addr.String()
			if e.HasWeight {
				text += fmt.Sprintf("*%d", e.Weight)
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// weightsOfPods finds the weights of pods by their names.
func weightsOfPods(t *testing.T, pods []corev1.Pod) func(api.Name) (*PodWeight, bool) {
	t.Helper()
	all := map[string]*PodWeight{}
	for i := range pods {
		if p := ConvertPod(&pods[i]); p != nil {
			if p.Weight > maxWeight {
				t.Errorf("weight %+v", p)
			}
			all[pods[i].Name] = p
		}
	}
	return func(n api.Name) (*PodWeight, bool) { p, ok := all[n.Name]; return p, ok }
}

// checkWeights checks that what the controller writes of a slice comes back.
func checkWeights(t *testing.T, wire discoveryv1.EndpointSlice, s *service.Slice) {
	t.Helper()
	wire.Annotations = map[string]string{AnnotationEndpointWeights: formatWeights(s)}
	again := ConvertSlice(&wire)
	if ReadWeights(&wire, again); formatWeights(again) != formatWeights(s) {
		t.Errorf("weights %q come back as %q", formatWeights(s), formatWeights(again))
	}
}

func TestConvertPod(t *testing.T) {
	for _, test := range []struct {
		text string
		want string
	}{
		{"0", "0"}, {"1", "1"}, {" 256 ", "256"},
		{"257", "1 bad"}, {"-1", "1 bad"}, {"", "1 bad"}, {"3.5", "1 bad"}, {"99999999999999999999", "1 bad"}, {"heavy", "1 bad"},
	} {
		o := apiPod("p", "web", "10.0.0.1", "x")
		o.Annotations["fairway.net/weight"] = test.text
		got := ConvertPod(o)
		text := fmt.Sprint(got.Weight)
		if got.Problem != "" {
			text += " bad"
			if want := fmt.Sprintf("Pod p: annotation fairway.net/weight: %q is not a number from 0 to 256; using 1", test.text); got.Problem != want {
				t.Errorf("problem %q, want %q", got.Problem, want)
			}
		}
		if text != test.want {
			t.Errorf("%q: %+v, want %s", test.text, got, test.want)
		}
	}
	if got := ConvertPod(apiPod("p", "web", "10.0.0.1", "")); got != nil {
		t.Errorf("a pod without a weight: %+v", got)
	}
}

// TestReadWeights: what an agent makes of a slice's annotation, whoever wrote it.
func TestReadWeights(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"10.0.0.1=3":                         "10.0.0.1=3",
		"10.0.0.2=0 10.0.0.1=256":            "10.0.0.1=256 10.0.0.2=0",
		"10.0.0.1=257 10.0.0.2=5":            "10.0.0.2=5 bad",
		"10.0.0.1 10.0.0.2=x web=3":          " bad",
		"192.0.2.1=3":                        "",
		strings.Repeat("10.0.0.1=3 ", 10000): " bad",
	} {
		o := weighed(apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2"), text)
		s := ConvertSlice(o)
		ReadWeights(o, s)
		got := formatWeights(s)
		if len(s.Problems) == 1 && s.Problems[0].Reason == reasonWeight {
			got += " bad"
		}
		if got != want {
			t.Errorf("%.60q: %q, want %q; problems %s", text, got, want, messages(s.Problems))
		}
	}
}

func TestWithWeights(t *testing.T) {
	names := []string{"b", "a", "c", "d", "e", "none"}
	slice := ConvertSlice(ofPods(apiSlice("web-1", "web", "10.0.0.1", "10.0.0.1", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"), names...))
	pods := map[string]*PodWeight{}
	for name, weight := range map[string]string{"a": "5", "b": "7", "c": "?", "d": "?", "e": "?"} {
		pods[name] = ConvertPod(apiPod(name, "web", "10.9.9.9", weight))
	}
	got, bad := withWeights(slice, func(n api.Name) (*PodWeight, bool) {
		p, ok := pods[n.Name]
		return p, ok && n.Namespace == "default"
	}, 2)
	if text, want := formatWeights(got), "10.0.0.1=5 10.0.0.3=1 10.0.0.4=1 10.0.0.5=1"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	if len(bad) != 2 || !strings.Contains(bad[0].Message, "Pod c") {
		t.Errorf("problems: %s", messages(bad))
	}
	if formatWeights(slice) != "" {
		t.Error("the slice that was given has changed")
	}
}

// TestAgentsReadNoPods: an agent reads weights from the slices, whatever a user writes into
// a selector, and never asks for pods.
func TestAgentsReadNoPods(t *testing.T) {
	first := cluster()
	long := first[servicesPath][0].(*corev1.Service)
	for i := range 4000 {
		long.Spec.Selector[fmt.Sprintf("%0300d", i)] = ""
	}
	server := newStreamServer(t, first)
	server.front(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "pods") {
			t.Error("pods were asked for")
		}
		return false
	})
	s := against(t, server, slog.New(slog.DiscardHandler))
	takeUntil(t, s, svcName("web"))
	if got := weightsOf(s, svcName("web")); got != "10.0.0.1*3" {
		t.Errorf("endpoints %q", got)
	}
}

// weigherTest is a controller's Weigher, and what it reports.
type weigherTest struct {
	client *fake.Clientset
	mu     sync.Mutex
	bad    map[api.Name]string
	ofPods []string
}

// startWeigher runs a Weigher until the test ends.
func startWeigher(t *testing.T, client *fake.Clientset) *weigherTest {
	t.Helper()
	w := &weigherTest{client: client, bad: map[api.Name]string{}}
	log := slog.New(slog.DiscardHandler)
	s := New(Config{Log: log, Client: client})
	weigher := NewWeigher(log, s, func(name api.Name, p []api.Problem) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.bad[name] = messages(p)
	}, func(pod api.Name, uid string, p api.Problem) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ofPods = append(w.ofPods, fmt.Sprintf("%s %s %s: %s", pod, uid, p.Reason, p.Message))
	})
	runUntilEnd(t, s)
	runUntilEnd(t, weigher)
	waitFor(t, weigher.sub.Synced(), "the first lists")
	return w
}

// expect waits for the weights of a slice, as they are at the API server.
func (w *weigherTest) expect(t *testing.T, when, slice, want string) {
	t.Helper()
	until(t, fmt.Sprintf("%s: %s to have %q", when, slice, want), func() bool {
		o, err := w.client.Tracker().Get(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "default", slice)
		text, has := "", false
		if err == nil {
			text, has = o.(*discoveryv1.EndpointSlice).Annotations[AnnotationEndpointWeights]
		}
		return err == nil && text == want && has == (want != "")
	})
}

// TestWeigher: the slices of Services that ask have the weights of their pods, those of
// others have none, and what is right is not written.
func TestWeigher(t *testing.T) {
	ctx := t.Context()
	foreign := ofPods(apiSlice("shop-1", "shop", "10.0.0.1"), "a")
	foreign.Annotations = map[string]string{"example.com/theirs": "stays"}
	client := fake.NewClientset(
		weighted("web", "10.96.0.1", "web"), ofPods(apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2"), "a", "b"), ofPods(apiSlice("web-2", "web", "10.0.0.3"), "c"),
		apiService("shop", "10.96.0.2"), foreign,
		apiPod("a", "web", "10.0.0.1", "3"), apiPod("b", "web", "10.0.0.2", ""), apiPod("c", "web", "10.0.0.3", "?"),
	)
	w := startWeigher(t, client)
	w.expect(t, "at first", "web-1", "10.0.0.1=3")
	w.expect(t, "a bad weight", "web-2", "10.0.0.3=1")
	until(t, "the problem", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return strings.Contains(w.bad[svcName("web")], "Pod c: annotation fairway.net/weight")
	})
	watched(t, client, 3)
	pods, services := client.CoreV1().Pods("default"), client.CoreV1().Services("default")
	must[*corev1.Pod](t)(pods.Update(ctx, apiPod("b", "web", "10.0.0.2", "0"), metav1.UpdateOptions{}))
	w.expect(t, "another pod", "web-1", "10.0.0.1=3 10.0.0.2=0")
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.expect(t, "a pod is gone", "web-1", "10.0.0.2=0")
	must[*corev1.Service](t)(services.Update(ctx, weighted("shop", "10.96.0.2", "web"), metav1.UpdateOptions{}))
	must[*corev1.Pod](t)(pods.Create(ctx, apiPod("a", "web", "10.0.0.1", "9"), metav1.CreateOptions{}))
	w.expect(t, "another Service asks", "shop-1", "10.0.0.1=9")
	w.expect(t, "of the same pod", "web-1", "10.0.0.1=9 10.0.0.2=0")
	must[*corev1.Service](t)(services.Update(ctx, apiService("shop", "10.96.0.2"), metav1.UpdateOptions{}))
	w.expect(t, "it asks no more", "shop-1", "")
	o, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "shop-1", metav1.GetOptions{})
	if err != nil || o.Annotations["example.com/theirs"] != "stays" || len(o.Endpoints) != 1 {
		t.Errorf("what others wrote: %+v, %v", o, err)
	}

	watches := 0
	for _, a := range client.Actions() {
		if a.Matches("watch", "pods") {
			watches++
		}
	}
	if watches != 1 {
		t.Errorf("pods are watched %d times for two Services, want once for all", watches)
	}

	agent := start(t, client)
	until(t, "an agent has the weights", func() bool { return weightsOf(agent, svcName("web")) == "10.0.0.1*9 10.0.0.2*0 10.0.0.3*1" })
}

// TestWeigherWritesNothing: a controller that starts where all is right writes nothing.
func TestWeigherWritesNothing(t *testing.T) {
	client := fake.NewClientset(
		weighted("web", "10.96.0.1", "web"), weighed(ofPods(apiSlice("web-1", "web", "10.0.0.1"), "a"), "10.0.0.1=3"),
		weighted("shop", "10.96.0.2", "shop"), ofPods(apiSlice("shop-1", "shop", "10.0.0.2"), "b"),
		apiService("other", "10.96.0.3"), apiSlice("other-1", "other", "10.0.0.3"),
		apiPod("a", "web", "10.0.0.1", "3"), apiPod("b", "shop", "10.0.0.2", "4"),
	)
	w := startWeigher(t, client)
	w.expect(t, "the one that is not right", "shop-1", "10.0.0.2=4")
	until(t, "all to be looked at", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.bad) == 3
	})
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" && !strings.Contains(fmt.Sprintf("%+v", a), "shop-1") {
			t.Errorf("wrote %+v", a)
		}
	}
}
