package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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

// weightsOf writes a Service's endpoints as "10.0.0.1*3 10.0.0.2", sorted.
func weightsOf(s *source, name service.Name) string {
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

func podActions(client *fake.Clientset, verb string) (all []clienttesting.Action) {
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "pods" && a.GetVerb() == verb {
			all = append(all, a)
		}
	}
	return all
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
			if want := fmt.Sprintf("Pod p: annotation fairway.net/weight: %q is no number from 0 to 256; 1 counts", test.text); got.Problem != want {
				t.Errorf("problem %q, want %q", got.Problem, want)
			}
		}
		if text != test.want || !slices.Equal(got.Addrs, ips("10.0.0.1")) {
			t.Errorf("%q: %+v, want %s", test.text, got, test.want)
		}
	}
	if got := ConvertPod(apiPod("p", "web", "10.0.0.1", "")); got != nil {
		t.Errorf("a pod without a weight: %+v", got)
	}
	ended := apiPod("p", "web", "10.0.0.1", "3")
	ended.Status.Phase = corev1.PodSucceeded
	if got := ConvertPod(ended); got != nil {
		t.Errorf("a pod that has ended: %+v", got)
	}
}

func TestWithWeights(t *testing.T) {
	slice := ConvertSlice(apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"))
	var pods []*PodWeight
	for i, weight := range []string{"7", "a", "b", "c", "d"} {
		pods = append(pods, ConvertPod(apiPod(fmt.Sprint("p", i), "web", fmt.Sprintf("10.0.0.%d", i+1), weight)))
	}
	pods = append(pods, ConvertPod(apiPod("a-first", "web", "10.0.0.1", "5")), ConvertPod(apiPod("far", "web", "10.9.9.9", "?")))
	all := []*service.Slice{slice}
	got := WithWeights(all, pods)[0]
	text := ""
	for _, e := range got.Endpoints {
		text += fmt.Sprint(" ", e.Weight, e.HasWeight)
	}
	if want := " 5 true 1 true 1 true 1 true 1 true 0 false"; text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	if len(got.Problems) != maxWeightProblems || !strings.Contains(got.Problems[0].Message, "Pod p1") {
		t.Errorf("problems: %s", messages(got.Problems))
	}
	if slice.Endpoints[0].HasWeight || len(slice.Problems) > 0 {
		t.Error("the slice that was given has changed")
	}
	if same := WithWeights(all, nil); same[0] != slice {
		t.Error("without weights there is a copy")
	}
}

// No Service asks for weights, so that pods are not read: not even when a Service is
// written whose pods have weights.
func TestNoWeightsNoPods(t *testing.T) {
	client := fake.NewClientset(apiService("web", "10.96.0.1"), apiSlice("web-1", "web", "10.0.0.1"), apiPod("p", "web", "10.0.0.1", "3"))
	s := start(t, client)
	takeUntil(t, s, svcName("web"))
	watched(t, client, 4)
	changed := apiService("web", "10.96.0.1")
	changed.Spec.Selector = map[string]string{"app": "web"}
	changed.Annotations = map[string]string{"fairway.net/weights": "false", "fairway.net/balance": "rr"}
	must[*corev1.Service](t)(client.CoreV1().Services("default").Update(t.Context(), changed, metav1.UpdateOptions{}))
	takeUntil(t, s, svcName("web"))
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "pods" {
			t.Errorf("asked for pods: %v", a)
		}
	}
	if got := weightsOf(s, svcName("web")); got != "10.0.0.1" {
		t.Errorf("endpoints %s", got)
	}
}

func TestWeights(t *testing.T) {
	ctx := t.Context()
	web, shop := svcName("web"), svcName("shop")
	client := fake.NewClientset(
		weighted("web", "10.96.0.1", "web"), apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2", "10.0.0.3"),
		apiPod("a", "web", "10.0.0.1", "3"), apiPod("b", "web", "10.0.0.2", ""), apiPod("c", "other", "10.0.0.3", "9"),
	)
	watches := make(chan *watch.RaceFreeFakeWatcher, 10)
	client.PrependWatchReactor("pods", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w := watch.NewRaceFreeFake()
		watches <- w
		return true, w, nil
	})
	s := start(t, client)
	takeUntil(t, s, web)
	until(t, "the first weights", func() bool { return weightsOf(s, web) == "10.0.0.1*3 10.0.0.2 10.0.0.3" })
	s.Take()
	w := <-watches
	watched(t, client, 5) // services, slices, nodes, ranges and the pods
	services := client.CoreV1().Services("default")

	w.Modify(apiPod("b", "web", "10.0.0.2", "7"))
	takeUntil(t, s, web)
	if got, want := weightsOf(s, web), "10.0.0.1*3 10.0.0.2*7 10.0.0.3"; got != want {
		t.Errorf("changed: %q, want %q", got, want)
	}
	w.Modify(apiPod("b", "web", "10.0.0.2", "x"))
	takeUntil(t, s, web)
	if got, want := weightsOf(s, web), "10.0.0.1*3 10.0.0.2*1 10.0.0.3"; got != want || len(s.Slices(web)[0].Problems) != 1 {
		t.Errorf("bad: %q, want %q", got, want)
	}

	// Another Service of the same pods shares the watch, and keeps it when the first goes.
	must[*corev1.Service](t)(services.Create(ctx, weighted("shop", "10.96.0.2", "web"), metav1.CreateOptions{}))
	takeUntil(t, s, shop)
	w.Delete(apiPod("b", "web", "10.0.0.2", "x"))
	takeUntil(t, s, web, shop)
	if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	takeUntil(t, s, web)
	w.Modify(apiPod("a", "web", "10.0.0.1", "4"))
	takeUntil(t, s, shop)

	// It asks for other pods now, and then for none.
	must[*corev1.Service](t)(services.Update(ctx, weighted("shop", "10.96.0.2", "other"), metav1.UpdateOptions{}))
	next := <-watches
	until(t, "the end of the first watch", w.IsStopped)
	must[*corev1.Service](t)(services.Update(ctx, apiService("shop", "10.96.0.2"), metav1.UpdateOptions{}))
	until(t, "the end of the second watch", next.IsStopped)
	s.weights.mu.Lock()
	defer s.weights.mu.Unlock()
	if n := len(s.weights.watches); n != 0 {
		t.Errorf("%d watches of pods are left", n)
	}
	selectors := map[string]bool{}
	for _, a := range podActions(client, "list") {
		selectors[a.GetNamespace()+" "+a.(clienttesting.ListAction).GetListRestrictions().Labels.String()] = true
	}
	if len(selectors) != 2 || !selectors["default app=web"] || !selectors["default app=other"] {
		t.Errorf("listed %v", selectors)
	}
}

// Without the right to read pods all works but weights.
func TestWeightsForbidden(t *testing.T) {
	web := svcName("web")
	client := fake.NewClientset(weighted("web", "10.96.0.1", "web"), apiSlice("web-1", "web", "10.0.0.1"), apiPod("a", "web", "10.0.0.1", "3"))
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
	})
	s := start(t, client)
	takeUntil(t, s, web)
	if got := weightsOf(s, web); got != "10.0.0.1" {
		t.Errorf("endpoints %s", got)
	}
}

func TestSelectorOf(t *testing.T) {
	o := weighted("web", "10.96.0.1", "web")
	o.Spec.Selector["tier"] = "front"
	got, _ := selectorOf(o)
	want := labels.Set{"app": "web", "tier": "front"}
	sel, err := labels.Parse(got.labels)
	if err != nil || got.namespace != "default" || !sel.Matches(want) || sel.Matches(labels.Set{"app": "web"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if none, _ := selectorOf(apiService("web", "10.96.0.1")); none != nil {
		t.Error("a Service without a selector has one")
	}
}
