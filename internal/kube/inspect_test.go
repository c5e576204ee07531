package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestInspect: the API server's version, its clock and this client's rights.
func TestInspect(t *testing.T) {
	clusterIP := "127.0.0.1"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		var v any
		switch {
		case r.URL.Path == "/version":
			v = map[string]string{"gitVersion": "v1.37.1"}
		case strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/default/services/"):
			v = map[string]any{"kind": "Service", "apiVersion": "v1", "spec": map[string]string{"clusterIP": clusterIP}}
		case r.URL.Path == "/api/v1/nodes" && r.URL.Query().Get("fieldSelector") == "metadata.name=node-1":
			v = map[string]any{"kind": "NodeList", "apiVersion": "v1", "items": []any{map[string]any{"metadata": map[string]string{"name": "node-1"}}}}
		default:
			w.WriteHeader(http.StatusForbidden)
			v = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}
		}
		_ = json.NewEncoder(w).Encode(v)
	}))
	defer server.Close()
	i, err := Inspect(t.Context(), Connection{Master: server.URL}, "node-1")
	if err != nil || i.Err != nil || i.Version != "v1.37.1" || !i.ClusterIP || !i.NodeKnown || len(i.Forbidden) != 1 || i.Forbidden[0] != "endpointslices" {
		t.Errorf("%+v, %v", i, err)
	}
	if !i.Dated || i.Ahead < 59*time.Minute || i.Ahead > 2*time.Hour {
		t.Errorf("the clock is %v ahead, dated %v; want an hour", i.Ahead, i.Dated)
	}
	clusterIP = "10.96.0.1"
	if i, err := Inspect(t.Context(), Connection{Master: server.URL}, "node-2"); err != nil || i.ClusterIP {
		t.Errorf("%+v, %v", i, err)
	}
	server.Close()
	if i, err := Inspect(t.Context(), Connection{Master: server.URL}, "node-1"); err != nil || i.Err == nil || strings.Contains(i.Err.Error(), "/version") {
		t.Errorf("%+v, %v", i, err)
	}
	if _, err := Inspect(t.Context(), Connection{Kubeconfig: "/nonexistent"}, "node-1"); err == nil {
		t.Error("no error without a kubeconfig")
	}
}
