package dns

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// object is a Kubernetes object as JSON has it.
type object = map[string]any

// An apiServer answers list and watch for the resources that the kubernetes
// plugin reads, over real HTTP, from a log of events that only grows.
type apiServer struct {
	URL  string
	cert []byte // of newAPIServerTLS

	mu      sync.Mutex
	log     []event
	changed chan struct{} // closed and replaced whenever log grows
}

type event struct {
	resource string
	Type     string `json:"type"`
	Object   object `json:"object"`
}

// kinds maps the resources served to their group version and kind.
var kinds = map[string][2]string{
	"services":       {"v1", "Service"},
	"namespaces":     {"v1", "Namespace"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
	"pods":           {"v1", "Pod"},
}

func newAPIServer(t testing.TB) *apiServer {
	t.Helper()
	a := &apiServer{changed: make(chan struct{})}
	srv := httptest.NewServer(a)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	a.URL = srv.URL
	return a
}

// newAPIServerTLS is newAPIServer as pods find it: by https, with a certificate.
func newAPIServerTLS(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{changed: make(chan struct{})}
	srv := httptest.NewTLSServer(a)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	a.URL, a.cert = srv.URL, srv.Certificate().Raw
	return a
}

// put adds one object, as `kubectl create` would.
func (a *apiServer) put(resource, namespace, name string, fields object) {
	a.send("ADDED", resource, namespace, name, fields)
}

// send appends one event to the log.
func (a *apiServer) send(typ, resource, namespace, name string, fields object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	meta := object{"name": name, "namespace": namespace, "resourceVersion": strconv.Itoa(len(a.log) + 1)}
	if l, ok := fields["labels"]; ok {
		meta["labels"] = l
	}
	o := object{"apiVersion": kinds[resource][0], "kind": kinds[resource][1], "metadata": meta}
	for k, v := range fields {
		if k != "labels" {
			o[k] = v
		}
	}
	a.log = append(a.log, event{resource, typ, o})
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if _, ok := kinds[resource]; !ok {
		http.Error(w, "not served: "+r.URL.Path, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	if q.Get("watch") == "" {
		a.list(w, resource)
		return
	}
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	if q.Get("sendInitialEvents") == "true" {
		from = 0
	}
	a.watch(w, r, resource, from, q.Get("sendInitialEvents") == "true")
}

// list answers with the objects of all ADDED events that were not deleted since.
func (a *apiServer) list(w http.ResponseWriter, resource string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	live := make(map[string]object)
	for _, e := range a.log {
		meta := e.Object["metadata"].(object)
		key := fmt.Sprint(meta["namespace"], "/", meta["name"])
		switch {
		case e.resource != resource:
		case e.Type == "DELETED":
			delete(live, key)
		default:
			live[key] = e.Object
		}
	}
	items := make([]object, 0, len(live))
	for _, o := range live {
		items = append(items, o)
	}
	json.NewEncoder(w).Encode(object{
		"apiVersion": kinds[resource][0], "kind": kinds[resource][1] + "List",
		"metadata": object{"resourceVersion": strconv.Itoa(len(a.log))}, "items": items,
	})
}

// watch streams the events after number from, until the client leaves. With
// initial it ends the first batch with the bookmark that KEP-3157 asks for.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string, from int, initial bool) {
	out := json.NewEncoder(w)
	for {
		a.mu.Lock()
		batch, changed := a.log[from:], a.changed
		from = len(a.log)
		a.mu.Unlock()
		for _, e := range batch {
			if e.resource == resource {
				out.Encode(e)
			}
		}
		if initial {
			initial = false
			out.Encode(event{Type: "BOOKMARK", Object: object{
				"apiVersion": kinds[resource][0], "kind": kinds[resource][1],
				"metadata": object{
					"resourceVersion": strconv.Itoa(from),
					"annotations":     object{"k8s.io/initial-events-end": "true"},
				},
			}})
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}
