package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// TestOnce: the objects stay readable after the end of reading, and make a table.
func TestOnce(t *testing.T) {
	server := newStreamServer(t, cluster())
	client, err := Connect(Connection{Master: server.URL, ContentType: "application/json"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Log: slog.New(slog.DiscardHandler), Client: client, NodeName: "node-1"}
	store, services, err := Once(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := store.Node(); n.Zone != "a" {
		t.Errorf("zone %q, want a", n.Zone)
	}
	e := services.Table(service.Facts{Node: service.Node{Name: "node-1"}}, service.HostPorts{}).Entry(svcName("web"))
	if e == nil || len(e.Frontends) != 1 {
		t.Errorf("the table has %+v", e)
	}

	server.instead[servicesPath] = failing()["silent"]
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := Once(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without Services: %v, want the end of the context", err)
	}
}
