package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metrics"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// CoreDNS's server of metrics answers whoever asks, as often as they ask. Each answer takes some hundred
// kilobytes while it is made: a pod that asked a thousand times at once made the process six times as large, and the
// kernel ended it for its limit of memory. So it is replaced by one that has few connections.
//
//	prometheus :9153 ── CoreDNS opens the port ── it is closed ── and opened with a limit: /metrics
const (
	scrapeConns         = 64 // at a time, and of one client:
	scrapeConnsOfClient = 8
	scrapeTimeout       = 5 * time.Second
)

// scrapes are the servers of metrics, by address. There is one DNS server in a process.
var scrapes struct {
	mu     sync.Mutex
	blocks []caddyfile.ServerBlock // of the Corefile that is being read
	open   map[string]*http.Server
}

// limitScrapes takes over CoreDNS's servers of metrics, of all server blocks, when they have started.
func limitScrapes(c *caddy.Controller) {
	configs := allConfigs(c)
	take := func() error {
		scrapes.mu.Lock()
		defer scrapes.mu.Unlock()
		for _, config := range configs {
			if m, ok := config.Handler("prometheus").(*metrics.Metrics); ok {
				if err := replace(m); err != nil {
					return err
				}
			}
		}
		return nil
	}
	c.OnStartup(take)
	c.OnRestartFailed(take)
	c.OnRestart(endScrapes)
	c.OnFinalShutdown(endScrapes)
}

// allConfigs are the configurations of all server blocks, by key.
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

// replace closes the port of m and opens it with a limit, by TLS if m has it.
func replace(m *metrics.Metrics) error {
	// Who has connected already and is silent holds CoreDNS's server for longer than it waits: it has closed its port
	// by then, and ends the connection by itself.
	if err := m.OnRestart(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("end CoreDNS's server of metrics at %s: %w", m.Addr, err)
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
	silent := slog.New(slog.DiscardHandler) // any pod can make a handshake fail, and each would be a line
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: scrapeTimeout, ReadTimeout: scrapeTimeout, WriteTimeout: scrapeTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(silent.Handler(), slog.LevelError),
	}
	if scrapes.open == nil {
		scrapes.open = map[string]*http.Server{}
	}
	scrapes.open[m.Addr] = server
	limited := listener.NewLimit(scrapeConns, scrapeConnsOfClient, scrapeConns).Listen(l)
	tlsFile := reflect.ValueOf(m).Elem().FieldByName("tlsConfigPath").String() // empty: no TLS. CoreDNS has read the file
	go func() {
		if err := web.Serve(limited, server, &web.FlagConfig{WebConfigFile: &tlsFile}, silent); !errors.Is(err, http.ErrServerClosed) {
			clog.Errorf("no metrics are served at %s any more: %v", m.Addr, err)
		}
	}()
	return nil
}

// endScrapes ends the servers of metrics.
func endScrapes() error {
	scrapes.mu.Lock()
	defer scrapes.mu.Unlock()
	for _, s := range scrapes.open {
		_ = s.Close() // who asks gets no answer, as from a process that has ended
	}
	clear(scrapes.open)
	return nil
}

// readBlocks notes the server blocks of the Corefile that is started next.
func readBlocks(blocks []caddyfile.ServerBlock) {
	scrapes.mu.Lock()
	defer scrapes.mu.Unlock()
	scrapes.blocks = blocks
}
