package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
