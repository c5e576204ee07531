package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/service"
)

// podServer answers as the API server does: by the first address only, in pages.
func podServer(t *testing.T, pods []corev1.Pod) (url string, requests *int) {
	t.Helper()
	requests = new(int)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests++
		q := r.URL.Query()
		if r.URL.Path != "/api/v1/namespaces/shop/pods" {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: slices.Clone(pods)}
		if ip, ok := strings.CutPrefix(q.Get("fieldSelector"), "status.podIP="); ok {
			list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return len(p.Status.PodIPs) == 0 || p.Status.PodIPs[0].IP != ip })
		}
		from, _ := strconv.Atoi(q.Get("continue"))
		limit, _ := strconv.Atoi(q.Get("limit"))
		list.Items = list.Items[from:]
		if limit > 0 && len(list.Items) > limit {
			list.Items = list.Items[:limit]
			list.Continue = strconv.Itoa(from + limit)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

func podAt(phase corev1.PodPhase, ips ...string) corev1.Pod {
	p := corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func TestAlive(t *testing.T) {
	many := func(n int, ips ...string) []corev1.Pod {
		return slices.Repeat([]corev1.Pod{podAt(corev1.PodRunning, ips...)}, n)
	}
	for name, c := range map[string]struct {
		pods     []corev1.Pod
		addr     string
		want     bool
		requests int
	}{
		"alive":                  {pods: append(many(100, "10.0.0.1"), podAt(corev1.PodRunning, "10.0.0.2")), addr: "10.0.0.2", want: true, requests: 1},
		"nobody":                 {addr: "10.0.0.2", requests: 2},
		"others":                 {pods: many(1000, "10.0.0.1"), addr: "10.0.0.2", requests: 2},
		"has ended":              {pods: []corev1.Pod{podAt(corev1.PodSucceeded, "10.0.0.2"), podAt(corev1.PodFailed, "10.0.0.2")}, addr: "10.0.0.2", requests: 2},
		"by its second address":  {pods: append(many(800, "10.0.0.1", "fd00::1"), podAt(corev1.PodRunning, "10.0.0.2", "fd00::2")), addr: "fd00::2", want: true, requests: 4},
		"nobody has the second":  {pods: many(800, "10.0.0.1", "fd00::1"), addr: "fd00::2", requests: 4},
		"some have none as yet":  {pods: append(many(30), podAt(corev1.PodRunning, "10.0.0.2", "fd00::2")), addr: "fd00::2", want: true, requests: 3},
		"written in another way": {pods: []corev1.Pod{podAt(corev1.PodRunning, "10.0.0.2", "FD00:0::2")}, addr: "fd00::2", want: true, requests: 2},
	} {
		url, requests := podServer(t, c.pods)
		client, err := Connect(Connection{Master: url, QPS: -1, ContentType: "application/json"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Alive(t.Context(), client, "shop", netip.MustParseAddr(c.addr))
		if err != nil || got != c.want || *requests != c.requests {
			t.Errorf("%s: %v, %v after %d requests; want %v after %d", name, got, err, *requests, c.want, c.requests)
		}
		if _, err := Alive(t.Context(), client, "other", netip.MustParseAddr(c.addr)); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: an API server that refuses: %v, want one line", name, err)
		}
	}
}

// TestPodNames: a slice keeps the names of its endpoints' pods, in whatever order they come.
func TestPodNames(t *testing.T) {
	endpoint := func(addr, kind, namespace, name string) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{addr}}
		if kind != "" {
			e.TargetRef = &corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: name}
		}
		return e
	}
	s := ConvertSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		Endpoints: []discoveryv1.Endpoint{
			endpoint("10.0.0.9", "Pod", "shop", "web-9"), endpoint("no address", "Pod", "shop", "web-0"), endpoint("10.0.0.1", "Pod", "", "web-1"),
			endpoint("10.0.0.3", "", "", ""), endpoint("10.0.0.4", "Node", "", "web-4"), endpoint("10.0.0.5", "Pod", "bank", "web-5"),
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	})
	want := map[string]string{"10.0.0.9": "web-9", "10.0.0.1": "web-1", "10.0.0.3": "", "10.0.0.4": "", "10.0.0.5": ""}
	for i, e := range s.Endpoints {
		if got := s.Pods.At(i); got != want[e.Addr.String()] {
			t.Errorf("%v: pod %q, want %q", e.Addr, got, want[e.Addr.String()])
		}
		delete(want, e.Addr.String())
	}
	if len(want) > 0 {
		t.Errorf("endpoints are missing: %v", want)
	}
}

// TestPodNamesAreSmall: what the names of the pods of a large cluster cost.
func TestPodNamesAreSmall(t *testing.T) {
	const endpoints, perSlice = 250_000, 100
	bytes := 0
	for range endpoints / perSlice {
		names := make([]string, perSlice)
		for i := range names {
			names[i] = fmt.Sprintf("checkout-service-7d4b9c6f5d-%05x", i*7919)
		}
		bytes += len(fmt.Sprint(service.PackPodNames(names)))
	}
	if bytes > 2<<20 {
		t.Errorf("%d bytes for %d names", bytes, endpoints)
	}
	t.Logf("%d bytes for %d names", bytes, endpoints)
}
