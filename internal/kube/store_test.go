package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/fairway-net/fairway/internal/api"
)

// deadline is a test's time limit for an expected event.
const deadline = 20 * time.Second

func svcName(name string) api.Name { return api.Name{Namespace: "default", Name: name} }

func apiService(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func apiSlice(name, svc string, addrs ...string) *discoveryv1.EndpointSlice {
	port := int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: svc},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: &port}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func apiNode(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

// source is a Store with two subscriptions: one of a consumer of Services such as the proxy loop, and one of a consumer
// of nodes.
type source struct {
	*Store
	*Services
	nodeSub *Subscription
}

func newSource(cfg Config) *source {
	s := New(cfg)
	return &source{s, s.SubscribeServices("services"), s.SubscribeNodes("nodes")}
}

func (s *source) NodeChanged() <-chan struct{} { return s.nodeSub.Dirty() }

// start runs a Store until the test ends.
func start(t *testing.T, client *fake.Clientset, change ...func(*Config)) *source {
	t.Helper()
	cfg := Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1"}
	for _, c := range change {
		c(&cfg)
	}
	s := newSource(cfg)
	runUntilEnd(t, s)
	return s
}

func runUntilEnd(t *testing.T, s interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(deadline):
			t.Error("Run did not end with its context")
		}
	})
}

func waitFor(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(deadline):
		t.Fatalf("%s did not happen in %v", what, deadline)
	}
}

// takeUntil follows Dirty until exactly the wanted names have been taken.
func takeUntil(t *testing.T, s *source, want ...api.Name) {
	t.Helper()
	got := map[api.Name]bool{}
	for len(got) < len(want) {
		waitFor(t, s.Dirty(), "a wake-up")
		for _, n := range s.Take() {
			if !slices.Contains(want, n) {
				t.Fatalf("took %v, want only %v", n, want)
			}
			got[n] = true
		}
	}
}

func addrsOf(s *source, name api.Name) []string {
	var out []string
	for _, slice := range s.Slices(name) {
		for _, e := range slice.Endpoints {
			out = append(out, e.Addr.String())
		}
	}
	slices.Sort(out)
	return out
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestNothingBeforeEveryFirstListIsIn(t *testing.T) {
	client := fake.NewClientset(apiService("web", "10.96.0.1"), apiSlice("web-1", "web", "10.0.0.1"), apiNode("node-1", "a"))
	gate := make(chan struct{})
	// The fake cannot answer late. It can only fail until the gate is open.
	client.PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-gate:
			return false, nil, nil
		default:
			return true, nil, errors.New("not yet")
		}
	})
	s := start(t, client)

	// A consumer of nodes does not wait for slices.
	waitFor(t, s.nodeSub.Synced(), "Synced of a consumer of nodes")
	waitFor(t, s.NodeChanged(), "NodeChanged")
	until(t, "services and nodes to be listed", func() bool {
		_, svc := s.Service(svcName("web"))
		_, node := s.Node()
		return svc && node
	})
	if names := s.Take(); len(names) != 0 {
		t.Errorf("took %v before the slices were listed", names)
	}
	for name, c := range map[string]<-chan struct{}{"Dirty": s.Dirty(), "Synced": s.Synced()} {
		select {
		case <-c:
			t.Errorf("%s fired before the slices were listed", name)
		default:
		}
	}

	close(gate)
	waitFor(t, s.Synced(), "Synced")
	takeUntil(t, s, svcName("web"))
	if got, want := addrsOf(s, svcName("web")), []string{"10.0.0.1"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
}

// until polls cond.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", deadline, what)
		}
	}
}

func TestChanges(t *testing.T) {
	ctx := t.Context()
	web, apiName := svcName("web"), svcName("api")
	client := fake.NewClientset(
		apiService("web", "10.96.0.1"), apiService("api", "10.96.0.2"),
		apiSlice("web-1", "web", "10.0.0.1"), apiSlice("api-1", "api", "10.0.1.1"),
		apiNode("node-1", "a"),
	)
	s := start(t, client)
	takeUntil(t, s, web, apiName)
	watched(t, client, 3)

	services := client.CoreV1().Services("default")
	endpoints := client.DiscoveryV1().EndpointSlices("default")

	t.Run("a new slice", func(t *testing.T) {
		must[*discoveryv1.EndpointSlice](t)(endpoints.Create(ctx, apiSlice("web-2", "web", "10.0.0.2"), metav1.CreateOptions{}))
		takeUntil(t, s, web)
		if got, want := addrsOf(s, web), []string{"10.0.0.1", "10.0.0.2"}; !slices.Equal(got, want) {
			t.Errorf("endpoints %v, want %v", got, want)
		}
	})
	t.Run("a slice moves to another Service", func(t *testing.T) {
		must[*discoveryv1.EndpointSlice](t)(endpoints.Update(ctx, apiSlice("web-2", "api", "10.0.0.2"), metav1.UpdateOptions{}))
		takeUntil(t, s, web, apiName)
		if got, want := addrsOf(s, web), []string{"10.0.0.1"}; !slices.Equal(got, want) {
			t.Errorf("endpoints of the old Service %v, want %v", got, want)
		}
		if got, want := addrsOf(s, apiName), []string{"10.0.0.2", "10.0.1.1"}; !slices.Equal(got, want) {
			t.Errorf("endpoints of the new Service %v, want %v", got, want)
		}
	})
	t.Run("a slice that no Service owns any more", func(t *testing.T) {
		orphan := apiSlice("web-2", "", "10.0.0.2")
		must[*discoveryv1.EndpointSlice](t)(endpoints.Update(ctx, orphan, metav1.UpdateOptions{}))
		takeUntil(t, s, apiName)
		if got, want := addrsOf(s, apiName), []string{"10.0.1.1"}; !slices.Equal(got, want) {
			t.Errorf("endpoints %v, want %v", got, want)
		}
	})
	t.Run("a change that does not matter wakes no consumer", func(t *testing.T) {
		o := apiService("web", "10.96.0.1")
		o.Annotations = map[string]string{"note": "seen"}
		must[*corev1.Service](t)(services.Update(ctx, o, metav1.UpdateOptions{}))
		// The next change of the same kind comes later, and only it may be taken.
		must[*corev1.Service](t)(services.Update(ctx, apiService("api", "10.96.0.3"), metav1.UpdateOptions{}))
		takeUntil(t, s, apiName)
	})
	t.Run("deletion", func(t *testing.T) {
		if err := endpoints.Delete(ctx, "web-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		takeUntil(t, s, web)
		if got := addrsOf(s, web); len(got) != 0 {
			t.Errorf("endpoints %v of a Service that has none", got)
		}
		if err := services.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		takeUntil(t, s, web)
		if _, ok := s.Service(web); ok {
			t.Error("the Service is still there")
		}
	})
}

// watched waits until n watches are open. The fake forgets events between its list and its watch, which a real API
// server does not.
func watched(t *testing.T, client *fake.Clientset, n int) {
	t.Helper()
	until(t, "watches", func() bool {
		count := 0
		for _, a := range client.Actions() {
			if a.GetVerb() == "watch" {
				count++
			}
		}
		return count >= n
	})
}

func TestSelectors(t *testing.T) {
	for _, all := range []bool{false, true} {
		client := fake.NewClientset()
		s := start(t, client, func(c *Config) { c.AllNodes = all })
		waitFor(t, s.Synced(), "Synced")
		watched(t, client, 3)
		node := "metadata.name=node-1"
		if all {
			node = ""
		}
		want := map[string][2]string{
			"services":       {"!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"},
			"endpointslices": {"!service.kubernetes.io/headless", ""},
			"nodes":          {"", node},
		}
		for _, a := range client.Actions() {
			var got [2]string
			switch a := a.(type) {
			case clienttesting.ListAction:
				r := a.GetListRestrictions()
				got = [2]string{r.Labels.String(), r.Fields.String()}
			case clienttesting.WatchAction:
				r := a.GetWatchRestrictions()
				got = [2]string{r.Labels.String(), r.Fields.String()}
			}
			if got != want[a.GetResource().Resource] {
				t.Errorf("AllNodes %v: %s %s with selectors %q, want %q", all, a.GetVerb(), a.GetResource().Resource, got, want[a.GetResource().Resource])
			}
		}
	}
}

// The API server leaves out the Services of another proxy, or of no proxy. The fake applies labels in the same way.
func TestNotOurs(t *testing.T) {
	other := apiService("other", "10.96.0.2")
	other.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another-proxy"}
	empty := apiService("empty", "10.96.0.3")
	empty.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
	headless := apiSlice("headless-1", "headless", "10.0.0.9")
	headless.Labels[corev1.IsHeadlessService] = ""
	s := start(t, fake.NewClientset(
		apiService("web", "10.96.0.1"), other, empty, apiSlice("web-1", "web", "10.0.0.1"), headless,
	))
	takeUntil(t, s, svcName("web"))
	for _, name := range []string{"other", "empty"} {
		if _, ok := s.Service(svcName(name)); ok {
			t.Errorf("the Service %s is another proxy's, and here", name)
		}
	}
	if got := s.Slices(svcName("headless")); len(got) > 0 {
		t.Errorf("slices of a headless Service: %v", got)
	}
}

func TestReconnect(t *testing.T) {
	web, apiName := svcName("web"), svcName("api")
	client := fake.NewClientset(apiService("web", "10.96.0.1"), apiService("api", "10.96.0.2"))
	watches := make(chan *watch.FakeWatcher, 10)
	fail := make(chan error, 1)
	fail <- errors.New("connection refused") // the first list fails
	client.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case err := <-fail:
			return true, nil, err
		default:
			return false, nil, nil
		}
	})
	client.PrependWatchReactor("services", func(clienttesting.Action) (bool, watch.Interface, error) {
		w := watch.NewFake()
		watches <- w
		return true, w, nil
	})
	s := start(t, client)
	takeUntil(t, s, web, apiName)

	// The watch breaks for good; meanwhile one Service goes and one comes. The server
	// no longer knows where we were (410), so that everything is listed again.
	w := <-watches
	if err := client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("services"), "default", "web"); err != nil {
		t.Fatal(err)
	}
	if err := client.Tracker().Add(apiService("new", "10.96.0.9")); err != nil {
		t.Fatal(err)
	}
	w.Error(&metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired})
	takeUntil(t, s, web, svcName("new")) // and not api, which is as it was
	if _, ok := s.Service(web); ok {
		t.Error("a Service that went while we were away is still there")
	}
}

func TestNodes(t *testing.T) {
	ctx := t.Context()
	other := apiNode("node-2", "b")
	other.Spec.PodCIDRs = []string{"10.244.2.0/24"}
	client := fake.NewClientset(apiNode("node-1", "a"), other)
	s := start(t, client, func(c *Config) { c.AllNodes = true })
	waitFor(t, s.Synced(), "Synced")
	waitFor(t, s.NodeChanged(), "NodeChanged")
	watched(t, client, 3)
	if n, ok := s.Node(); !ok || n.Zone != "a" {
		t.Errorf("Node() = %+v, %v; want zone a", n, ok)
	}
	if all := s.Nodes(); len(all) != 2 || all[0].Name != "node-1" || all[1].PodCIDRs[0].String() != "10.244.2.0/24" {
		t.Errorf("Nodes() = %+v", all)
	}

	must[*corev1.Node](t)(client.CoreV1().Nodes().Update(ctx, apiNode("node-1", "c"), metav1.UpdateOptions{}))
	waitFor(t, s.NodeChanged(), "NodeChanged")
	if n, _ := s.Node(); n.Zone != "c" {
		t.Errorf("zone %q, want c", n.Zone)
	}
	if names := s.Take(); len(names) != 0 {
		t.Errorf("a node made Services dirty: %v", names)
	}
	if err := client.CoreV1().Nodes().Delete(ctx, "node-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, s.NodeChanged(), "NodeChanged")
	if n, ok := s.Node(); !ok || n.Eligible || n.Zone != "c" {
		t.Errorf("Node() = %+v, %v; want the last one, not eligible", n, ok)
	}
}

func TestTriggers(t *testing.T) {
	web := svcName("web")
	client := fake.NewClientset()
	s := start(t, client)
	waitFor(t, s.Synced(), "Synced")
	watched(t, client, 3)
	at := func(name string, when time.Time, addr string) {
		t.Helper()
		o := apiSlice(name, "web", addr)
		o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: when.Format(time.RFC3339Nano)}
		must[*discoveryv1.EndpointSlice](t)(client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), o, metav1.CreateOptions{}))
	}
	early, late := s.Store.started.Add(time.Second).Truncate(0), s.Store.started.Add(2*time.Second).Truncate(0)
	at("a", late, "10.0.0.1")
	at("b", early, "10.0.0.2")
	at("c", s.Store.started.Add(-time.Hour), "10.0.0.3") // before our time
	until(t, "all slices", func() bool { return len(s.Slices(web)) == 3 })
	s.Take()
	if got := s.Triggers()[web]; !got.Equal(early) {
		t.Errorf("trigger %v, want the oldest one since the start, %v", got, early)
	}
	at("d", s.Store.started.Add(-time.Hour), "10.0.0.4")
	until(t, "slice d", func() bool { return len(s.Slices(web)) == 4 })
	s.Take()
	if got, ok := s.Triggers()[web]; ok {
		t.Errorf("trigger %v is from before the start or of an earlier Take", got)
	}
}

// TestConcurrentUse is for the race detector, and for lost wake-ups: in the end all
// that changed has been taken.
func TestConcurrentUse(t *testing.T) {
	client := fake.NewClientset()
	s := start(t, client)
	waitFor(t, s.Synced(), "Synced")
	watched(t, client, 3)
	const n = 80 // the fake holds 100 undelivered events
	go func() {
		for i := range n {
			name := fmt.Sprintf("svc-%d", i)
			_ = client.Tracker().Add(apiService(name, fmt.Sprintf("10.96.1.%d", i+1)))
			_ = client.Tracker().Add(apiSlice(name, name, fmt.Sprintf("10.0.0.%d", i+1)))
		}
	}()
	whole := map[api.Name]bool{}
	for len(whole) < n {
		waitFor(t, s.Dirty(), "a wake-up")
		for _, name := range s.Take() {
			if _, ok := s.Service(name); ok && len(addrsOf(s, name)) == 1 {
				whole[name] = true
			}
		}
	}
}
