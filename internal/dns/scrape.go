package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metrics"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// CoreDNS's metrics server has no limit of requests, and each request needs some hundred kilobytes. A pod with a thousand
// requests at a time made the process six times as large, and the kernel ended it. So a server with few connections
// replaces it, unless the Corefile asks for TLS.
//
//	prometheus :9153 ── CoreDNS opens the port ── we close it ── we open it with a limit: /metrics
const (
	scrapeConns         = 64
	scrapeConnsOfClient = 8
	scrapeTimeout       = 5 * time.Second
)

// scrapes are the metrics servers of the process.
var scrapes struct {
	mu     sync.Mutex
	blocks []caddyfile.ServerBlock // of the Corefile that starts next
	open   map[string]*http.Server // by address
}

// limitScrapes replaces CoreDNS's metrics servers when they have started.
func limitScrapes(c *caddy.Controller) {
	configs := allConfigs(c)
	replaceAll := func() error {
		scrapes.mu.Lock()
		defer scrapes.mu.Unlock()
		if has(scrapes.blocks, "prometheus", "tls") {
			return nil
		}
		for _, config := range configs {
			if m, ok := config.Handler("prometheus").(*metrics.Metrics); ok {
				if err := replace(m); err != nil {
					return err
				}
			}
		}
		return nil
	}
	c.OnStartup(replaceAll)
	c.OnRestartFailed(replaceAll)
	c.OnRestart(endScrapes)
	c.OnFinalShutdown(endScrapes)
}

// allConfigs returns the configurations of the zones of all server blocks.
func allConfigs(c *caddy.Controller) (all []*dnsserver.Config) {
	scrapes.mu.Lock()
	defer scrapes.mu.Unlock()
	for i, b := range scrapes.blocks {
		for k := range b.Keys {
			at := *c
			at.ServerBlockIndex, at.ServerBlockKeyIndex = i, k
			all = append(all, dnsserver.GetConfig(&at))
		}
	}
	return all
}

// replace closes the port of m and opens it again with a limit. The caller holds scrapes.mu.
func replace(m *metrics.Metrics) error {
	// A client that has connected and is silent delays the end of CoreDNS's server, which gives up after five seconds.
	// The port is closed by then.
	if err := m.OnRestart(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("end CoreDNS's metrics server at %s: %w", m.Addr, err)
	}
	if scrapes.open[m.Addr] != nil {
		return nil
	}
	l, err := net.Listen("tcp", m.Addr)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.Reg, promhttp.HandlerOpts{}))
	server := &http.Server{
		Handler: mux, ReadTimeout: scrapeTimeout, WriteTimeout: scrapeTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // any pod can cause an error, and each would be a line
	}
	if scrapes.open == nil {
		scrapes.open = map[string]*http.Server{}
	}
	scrapes.open[m.Addr] = server
	limited := listener.NewLimit(scrapeConns, scrapeConnsOfClient, scrapeConns).Listen(l)
	go func() {
		if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
			clog.Errorf("no metrics are served at %s any more: %v", m.Addr, err)
		}
	}()
	return nil
}

// endScrapes closes the metrics servers and their connections.
func endScrapes() error {
	scrapes.mu.Lock()
	defer scrapes.mu.Unlock()
	for _, s := range scrapes.open {
		_ = s.Close() // an error changes nothing: the server is closed
	}
	clear(scrapes.open)
	return nil
}

// setBlocks stores the server blocks of the Corefile that starts next.
func setBlocks(blocks []caddyfile.ServerBlock) {
	scrapes.mu.Lock()
	defer scrapes.mu.Unlock()
	scrapes.blocks = blocks
}
