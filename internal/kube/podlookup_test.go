package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/service"
)

// podServer answers as the API server does: by name, or by the first address only, in pages. It refuses requests that
// would make an API server read etcd for one pod.
func podServer(t *testing.T, pods []corev1.Pod) (url string, requests *int) {
	t.Helper()
	requests = new(int)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests++
		q := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		if name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/namespaces/shop/pods/"); ok {
			servePod(w, pods, name, q.Get("resourceVersion"))
			return
		}
		if r.URL.Path != "/api/v1/namespaces/shop/pods" {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: slices.Clone(pods)}
		if ip, ok := strings.CutPrefix(q.Get("fieldSelector"), "status.podIP="); ok {
			if q.Get("resourceVersion") != "0" {
				http.Error(w, "not from the cache", http.StatusBadRequest)
				return
			}
			list.Items = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return len(p.Status.PodIPs) == 0 || p.Status.PodIPs[0].IP != ip })
		}
		from, _ := strconv.Atoi(q.Get("continue"))
		limit, _ := strconv.Atoi(q.Get("limit"))
		list.Items = list.Items[from:]
		if limit > 0 && len(list.Items) > limit {
			list.Items = list.Items[:limit]
			list.Continue = strconv.Itoa(from + limit)
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

func servePod(w http.ResponseWriter, pods []corev1.Pod, name, version string) {
	if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == name }); version == "0" && i >= 0 {
		p := pods[i]
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		_ = json.NewEncoder(w).Encode(p)
		return
	}
	status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
	if version != "0" {
		status.Code, status.Reason, status.Message = http.StatusBadRequest, metav1.StatusReasonBadRequest, "not from the cache"
	}
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

func named(name string, terminating bool, p corev1.Pod) corev1.Pod {
	p.Name = name
	if terminating {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	return p
}

func podAt(phase corev1.PodPhase, ips ...string) corev1.Pod {
	p := corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func TestPodLookup(t *testing.T) {
	many := func(n int, ips ...string) []corev1.Pod {
		return slices.Repeat([]corev1.Pod{podAt(corev1.PodRunning, ips...)}, n)
	}
	const none, exists, ending, unknown = "none", "exists", "terminating", "unknown"
	web := named("web-0", false, podAt(corev1.PodRunning, "10.0.0.2", "fd00::2"))
	for name, c := range map[string]struct {
		pods      []corev1.Pod
		pod, addr string
		want      string
		requests  int
	}{
		"alive":                  {pods: append(many(100, "10.0.0.1"), podAt(corev1.PodRunning, "10.0.0.2")), addr: "10.0.0.2", want: exists, requests: 1},
		"no pod":                 {addr: "10.0.0.2", want: none, requests: 2},
		"others":                 {pods: many(1000, "10.0.0.1"), addr: "10.0.0.2", want: none, requests: 2},
		"has ended":              {pods: []corev1.Pod{podAt(corev1.PodSucceeded, "10.0.0.2"), podAt(corev1.PodFailed, "10.0.0.2")}, addr: "10.0.0.2", want: none, requests: 2},
		"by its second address":  {pods: append(many(800, "10.0.0.1", "fd00::1"), web), addr: "fd00::2", want: exists, requests: 4},
		"none has the second":    {pods: many(800, "10.0.0.1", "fd00::1"), addr: "fd00::2", want: none, requests: 4},
		"some have none as yet":  {pods: append(many(30), web), addr: "fd00::2", want: exists, requests: 3},
		"written in another way": {pods: []corev1.Pod{podAt(corev1.PodRunning, "10.0.0.2", "FD00:0::2")}, addr: "fd00::2", want: exists, requests: 2},
		"too many to look at":    {pods: many(5000, "10.0.0.1", "fd00::1"), addr: "fd00::2", want: unknown, requests: 1 + maxPages},
		"is being deleted":       {pods: []corev1.Pod{named("", true, web)}, addr: "10.0.0.2", want: ending, requests: 1},

		"by name":                         {pods: append(many(1000, "10.0.0.1"), web), pod: "web-0", addr: "10.0.0.2", want: exists, requests: 1},
		"by name and second address":      {pods: append(many(1000, "10.0.0.1"), web), pod: "web-0", addr: "fd00::2", want: exists, requests: 1},
		"by name, no pod":                 {pods: many(1000, "10.0.0.1"), pod: "web-0", addr: "10.0.0.2", want: none, requests: 1},
		"by name, has ended":              {pods: []corev1.Pod{named("web-0", false, podAt(corev1.PodFailed, "10.0.0.2"))}, pod: "web-0", addr: "10.0.0.2", want: none, requests: 1},
		"by name, is being deleted":       {pods: []corev1.Pod{named("web-0", true, web)}, pod: "web-0", addr: "10.0.0.2", want: ending, requests: 1},
		"by name, another address by now": {pods: []corev1.Pod{named("web-0", false, podAt(corev1.PodRunning, "10.0.0.3"))}, pod: "web-0", addr: "10.0.0.2", want: none, requests: 1},
		"by name, no address as yet":      {pods: []corev1.Pod{named("web-0", false, podAt(corev1.PodPending))}, pod: "web-0", addr: "10.0.0.2", want: none, requests: 1},
	} {
		url, requests := podServer(t, c.pods)
		client, err := Connect(Connection{Master: url, QPS: -1, ContentType: "application/json"})
		if err != nil {
			t.Fatal(err)
		}
		lookup := PodLookup{Client: client}
		is, terminating, err := lookup.Pod(t.Context(), "shop", c.pod, netip.MustParseAddr(c.addr))
		got := map[bool]string{false: none, true: exists}[is]
		switch {
		case err != nil:
			got = unknown
		case terminating:
			got = ending
		}
		if got != c.want || *requests != c.requests {
			t.Errorf("%s: %s, %v after %d requests; want %s after %d", name, got, err, *requests, c.want, c.requests)
		}
		if _, _, err := lookup.Pod(t.Context(), "other", c.pod, netip.MustParseAddr(c.addr)); c.pod == "" && (err == nil || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: an API server that refuses: %v, want one line", name, err)
		}
	}
}

// TestNoRightToPods: package flow learns that another question is useless.
func TestNoRightToPods(t *testing.T) {
	server := httptest.NewServer(fails(http.StatusForbidden, metav1.StatusReasonForbidden))
	t.Cleanup(server.Close)
	client, err := Connect(Connection{Master: server.URL, ContentType: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range []string{"web-0", ""} {
		_, _, err = PodLookup{Client: client}.Pod(t.Context(), "shop", pod, netip.MustParseAddr("10.0.0.1"))
		var denied interface{ Denied() bool }
		if !errors.As(err, &denied) || !denied.Denied() {
			t.Errorf("pod %q: %v, want an error that says so", pod, err)
		}
	}
}

// TestPodNames: a slice keeps the names of its endpoints' pods, in any order.
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

// TestPodNamesAreSmall limits the memory of the pod names of a large cluster.
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
