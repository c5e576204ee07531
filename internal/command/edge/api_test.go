package edge_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An edgeAPI is what `fairway edge` needs of one: lists, streaming lists and watches of a few
// kinds, over real HTTP.
type edgeAPI struct {
	mu     sync.Mutex
	change *sync.Cond
	events []edgeEvent // all that ever happened; the resourceVersion is how many there are
	asked  []string    // paths with queries
	leases edgeLeases
}

type edgeEvent struct {
	path   string
	Type   string        `json:"type"`
	Object metav1.Object `json:"object"`
}

// edgeKinds are the kinds by path.
var edgeKinds = map[string]metav1.TypeMeta{
	"/api/v1/services": {APIVersion: "v1", Kind: "Service"},
	"/api/v1/nodes":    {APIVersion: "v1", Kind: "Node"},
	"/apis/discovery.k8s.io/v1/endpointslices": {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
}

// serve answers at l until the test ends.
func (a *edgeAPI) serve(t *testing.T, l net.Listener) {
	a.change = sync.NewCond(&a.mu)
	s := &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { _ = s.Close(); a.change.Broadcast(); done.Wait() })
}

// set adds or replaces an object.
func (a *edgeAPI) set(o metav1.Object) {
	path := ""
	switch o := o.(type) {
	case *corev1.Service:
		path = "/api/v1/services"
		o.TypeMeta = edgeKinds[path]
	case *corev1.Node:
		path = "/api/v1/nodes"
		o.TypeMeta = edgeKinds[path]
	case *discoveryv1.EndpointSlice:
		path = "/apis/discovery.k8s.io/v1/endpointslices"
		o.TypeMeta = edgeKinds[path]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	what := "ADDED"
	if slices.ContainsFunc(a.events, func(e edgeEvent) bool { return e.path == path && e.Object.GetName() == o.GetName() }) {
		what = "MODIFIED"
	}
	o.SetResourceVersion(fmt.Sprint(len(a.events) + 1))
	a.events = append(a.events, edgeEvent{path, what, o})
	a.change.Broadcast()
}

// now returns the objects of a path as they are. a.mu is held.
func (a *edgeAPI) now(path string) []metav1.Object {
	all := []metav1.Object{}
	for i, e := range a.events {
		later := func(o edgeEvent) bool { return o.path == path && o.Object.GetName() == e.Object.GetName() }
		if e.path == path && !slices.ContainsFunc(a.events[i+1:], later) {
			all = append(all, e.Object)
		}
	}
	return all
}

// ServeHTTP implements http.Handler.
func (a *edgeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "/leases") {
		a.leases.ServeHTTP(w, r)
		return
	}
	kind, ok := edgeKinds[r.URL.Path]
	a.mu.Lock()
	a.asked = append(a.asked, r.Method+" "+r.URL.Path+" "+r.URL.Query().Get("fieldSelector"))
	seen, objects := len(a.events), a.now(r.URL.Path)
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		return
	}
	out := json.NewEncoder(w)
	if r.URL.Query().Get("watch") != "true" {
		_ = out.Encode(map[string]any{"kind": kind.Kind + "List", "apiVersion": kind.APIVersion, "metadata": map[string]string{"resourceVersion": fmt.Sprint(seen)}, "items": objects})
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, o := range objects {
			_ = out.Encode(edgeEvent{Type: "ADDED", Object: o})
		}
		_ = out.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kind.Kind, "apiVersion": kind.APIVersion, "metadata": map[string]any{
			"resourceVersion": fmt.Sprint(seen), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}})
	} else {
		_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &seen)
	}
	a.follow(w, r, seen)
}

// follow sends what happens from now on.
func (a *edgeAPI) follow(w http.ResponseWriter, r *http.Request, seen int) {
	stop := make(chan struct{})
	defer close(stop)
	go func() { // ends with the request
		select {
		case <-r.Context().Done():
		case <-stop:
		}
		a.change.Broadcast()
	}()
	w.(http.Flusher).Flush()
	for {
		a.mu.Lock()
		for len(a.events) == seen && r.Context().Err() == nil {
			a.change.Wait()
		}
		news := a.events[seen:]
		seen = len(a.events)
		a.mu.Unlock()
		if r.Context().Err() != nil {
			return
		}
		for _, e := range news {
			if e.path == r.URL.Path {
				_ = json.NewEncoder(w).Encode(e)
			}
		}
		w.(http.Flusher).Flush()
	}
}
