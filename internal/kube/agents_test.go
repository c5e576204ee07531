package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestAskForbidden: a user who may not ask agents hears that, and nothing about the agents.
func TestAskForbidden(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "pods \"http:fairway-agent-x:10256\" is forbidden"}`)
	}))
	t.Cleanup(server.Close)
	agents, err := ConnectAgents(Connection{Master: server.URL}, "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agents.Ask(t.Context(), AgentPod{Namespace: "kube-system", Name: "fairway-agent-x", port: "10256"}, "/statusz"); !errors.Is(err, ErrNoProxy) {
		t.Errorf("it says %v", err)
	}
}

// TestGatewayMetrics: the gateway's pods are found by their label, and their metrics are read at the port of that name, in
// bounds.
func TestGatewayMetrics(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/namespaces/kube-system/pods":
			if got := r.URL.Query().Get("labelSelector"); got != gatewayLabel {
				t.Errorf("selector %q", got)
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "gw-2", "namespace": "kube-system"}},
				{"metadata": {"name": "gw-1", "namespace": "kube-system"}, "spec": {"nodeName": "node-1", "containers": [{"name": "gateway", "ports": [{"name": "metrics", "containerPort": 9999}]}]}}]}`)
		case "/api/v1/namespaces/kube-system/pods/http:gw-1:9999/proxy/metrics", "/api/v1/namespaces/kube-system/pods/http:gw-2:9121/proxy/metrics":
			fmt.Fprint(w, "metric 1\n")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	agents, err := ConnectAgents(Connection{Master: server.URL}, "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	pods, err := agents.Gateways(t.Context())
	if err != nil || len(pods) != 2 || pods[0].Name != "gw-1" || pods[0].Node != "node-1" {
		t.Fatalf("%+v, %v", pods, err)
	}
	for _, p := range pods {
		if data, err := agents.Metrics(t.Context(), p, 9); err != nil || string(data) != "metric 1\n" {
			t.Errorf("%s: %q, %v", p.Name, data, err)
		}
		if _, err := agents.Metrics(t.Context(), p, 8); err == nil {
			t.Errorf("%s: metrics beyond the limit are read", p.Name)
		}
	}
}

// TestNames: names are asked for as metadata, in the namespace.
func TestNames(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api/v1/namespaces/shop/services":
			if !strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadataList") || r.URL.Query().Get("limit") == "" {
				t.Errorf("the request is %v, %v", r.URL, r.Header)
			}
			fmt.Fprint(w, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": [{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "web"}}]}`)
		default:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`)
		}
	}))
	t.Cleanup(server.Close)
	c := Connection{Master: server.URL}
	if got, err := c.Names(t.Context(), "services", "shop"); err != nil || len(got) != 1 || got[0] != "web" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := c.Names(t.Context(), "namespaces", ""); err == nil {
		t.Error("a refusal is no error")
	}
}
