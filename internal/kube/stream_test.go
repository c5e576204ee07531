package kube

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The paths that a streamServer serves.
const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	nodesPath    = "/api/v1/nodes"
	rangesPath   = "/apis/networking.k8s.io/v1/servicecidrs"
	podsPath     = "/api/v1/pods"
)

// streamServer speaks the API server's streaming list over real HTTP, which client-go
// uses by default and its fake cannot do: objects as ADDED events, a bookmark that ends
// the first list, then changes. It answers plain lists too.
type streamServer struct {
	*httptest.Server
	first map[string][]runtime.Object // by path
	// instead answers requests for a path, if it is there.
	instead map[string]http.HandlerFunc

	mu      sync.Mutex
	answers func(http.ResponseWriter, *http.Request) bool
	later   map[string]chan watchEvent
	asked   []string // resourceVersions of watches on Services
}

type watchEvent struct {
	Type   string         `json:"type"`
	Object runtime.Object `json:"object"`
	hangUp bool
}

func newStreamServer(t *testing.T, first map[string][]runtime.Object) *streamServer {
	t.Helper()
	s := &streamServer{first: first, later: map[string]chan watchEvent{}, instead: map[string]http.HandlerFunc{}}
	mux := http.NewServeMux()
	for path, o := range map[string]runtime.Object{
		servicesPath: &corev1.Service{}, nodesPath: &corev1.Node{}, slicesPath: &discoveryv1.EndpointSlice{},
		rangesPath: &networkingv1.ServiceCIDR{}, podsPath: &corev1.Pod{},
	} {
		s.later[path] = make(chan watchEvent)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if other := s.instead[path]; other != nil {
				other(w, r)
				return
			}
			s.watch(w, r, o)
		})
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		answers := s.answers
		s.mu.Unlock()
		if answers == nil || !answers(w, r) {
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections) // runs first: a watch never ends by itself
	return s
}

func typed(o runtime.Object) runtime.Object {
	switch o := o.(type) {
	case *corev1.Service:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	case *corev1.Node:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	case *discoveryv1.EndpointSlice:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	case *networkingv1.ServiceCIDR:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}
	case *corev1.Pod:
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	}
	return o
}

func (s *streamServer) watch(w http.ResponseWriter, r *http.Request, kind runtime.Object) {
	q := r.URL.Query()
	if q.Get("watch") != "true" {
		s.list(w, r.URL.Path, kind)
		return
	}
	send := func(e watchEvent) {
		e.Object = typed(e.Object)
		_ = json.NewEncoder(w).Encode(e)
		w.(http.Flusher).Flush()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	path := r.URL.Path
	if path == servicesPath {
		s.mu.Lock()
		s.asked = append(s.asked, q.Get("resourceVersion"))
		s.mu.Unlock()
	}
	if q.Get("sendInitialEvents") == "true" {
		for _, o := range s.objects(path) {
			send(watchEvent{Type: "ADDED", Object: o})
		}
		mark := kind.DeepCopyObject()
		m := mark.(metav1.Object)
		m.SetResourceVersion("100")
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		send(watchEvent{Type: "BOOKMARK", Object: mark})
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-s.later[path]:
			if e.hangUp {
				return
			}
			send(e)
		}
	}
}

// objects returns what there is at a path.
func (s *streamServer) objects(path string) []runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first[path]
}

// change replaces the API server's objects, and ends its watches because they are too old to go on.
func (s *streamServer) change(all map[string][]runtime.Object) {
	s.mu.Lock()
	s.first = all
	s.mu.Unlock()
	gone := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone}
	for _, path := range []string{servicesPath, slicesPath} {
		s.later[path] <- watchEvent{Type: "ERROR", Object: gone}
	}
}

// front lets answers see each request first, from now on; it reports whether it answered.
func (s *streamServer) front(answers func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = answers
}

// list answers a plain list.
func (s *streamServer) list(w http.ResponseWriter, path string, kind runtime.Object) {
	type list struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta  `json:"metadata"`
		Items           []runtime.Object `json:"items"`
	}
	t := typed(kind.DeepCopyObject()).GetObjectKind().GroupVersionKind()
	answer := list{Items: s.objects(path), Metadata: metav1.ListMeta{ResourceVersion: "100"}}
	answer.APIVersion, answer.Kind = t.GroupVersion().String(), t.Kind+"List"
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func versioned[T metav1.Object](o T, version int) T {
	o.SetResourceVersion(fmt.Sprint(version))
	return o
}

func TestStreamedListAndLostConnection(t *testing.T) {
	web, api := svcName("web"), svcName("api")
	server := newStreamServer(t, map[string][]runtime.Object{
		servicesPath: {versioned(apiService("web", "10.96.0.1"), 1), versioned(apiService("api", "10.96.0.2"), 2)},
		slicesPath:   {versioned(apiSlice("web-1", "web", "10.0.0.1"), 3)},
		nodesPath:    {versioned(apiNode("node-1", "a"), 4)},
	})
	client, err := Connect(Connection{Master: server.URL, ContentType: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	s := newSource(Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1"})
	runUntilEnd(t, s)

	takeUntil(t, s, web, api)
	if got, want := addrsOf(s, web), []string{"10.0.0.1"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	if n, ok := s.Node(); !ok || n.Zone != "a" {
		t.Errorf("Node() = %+v, %v", n, ok)
	}

	server.later[slicesPath] <- watchEvent{Type: "MODIFIED", Object: versioned(apiSlice("web-1", "web", "10.0.0.1", "10.0.0.2"), 101)}
	takeUntil(t, s, web)
	server.later[servicesPath] <- watchEvent{Type: "MODIFIED", Object: versioned(apiService("api", "10.96.0.3"), 102)}
	takeUntil(t, s, api)

	// The connection goes; the next watch must go on where this one was, not list again.
	server.later[servicesPath] <- watchEvent{hangUp: true}
	server.later[servicesPath] <- watchEvent{Type: "DELETED", Object: versioned(apiService("api", "10.96.0.3"), 103)}
	takeUntil(t, s, api)
	if _, ok := s.Service(api); ok {
		t.Error("a deleted Service is still there")
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if want := []string{"", "102"}; !slices.Equal(server.asked, want) {
		t.Errorf("watches from resourceVersions %q, want %q", server.asked, want)
	}
}
