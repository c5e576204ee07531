package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// NewRegistry returns a registry with the metrics of the process and of its parts.
func NewRegistry(parts ...prometheus.Collector) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(parts...)
	return registry
}

// Checks maps a path to a function that returns why the program is unhealthy, or nil.
type Checks map[string]func() error

// Serve answers /metrics and the checks until ctx ends. setting is the flag that set addr, for errors.
func Serve(ctx context.Context, addr, setting string, registry *prometheus.Registry, checks Checks) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	for path, healthy := range checks {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := healthy(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w [give another %s]", err, setting)
	}
	// Pods reach this port. A client that neither sends nor reads must not hold all connections.
	l = listener.NewLimit(listener.MaxConns, listener.MaxConnsOfClient, listener.MaxConnsOfNode).Listen(l)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
