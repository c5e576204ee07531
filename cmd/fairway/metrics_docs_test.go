package main

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/command/names"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/conntrack/share"
	"github.com/fairway-net/fairway/internal/gateway/server"
	"github.com/fairway-net/fairway/internal/ipc/liveness"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp"
	"github.com/fairway-net/fairway/internal/loadbalancer/edge"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2"
	"github.com/fairway-net/fairway/internal/networkpolicy/enforcer"
	"github.com/fairway-net/fairway/internal/podnetwork/node"
	"github.com/fairway-net/fairway/internal/podnetwork/node/obstacles"
	"github.com/fairway-net/fairway/internal/proxy"
	"github.com/fairway-net/fairway/internal/proxy/health"
	"github.com/fairway-net/fairway/internal/service"
)

var update = flag.Bool("update", false, "write the tables of docs anew")

// A recorder is a registry that also remembers what was registered.
type recorder struct {
	*prometheus.Registry
	all []prometheus.Collector
}

func (r *recorder) Register(c prometheus.Collector) error {
	r.all = append(r.all, c)
	return r.Registry.Register(c)
}

func (r *recorder) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// exporters are the packages that make metrics. Their collectors are in programs; those of
// internal/dns have a test of their own.
var exporters = []string{"internal/command/agent", "internal/command/names", "internal/dns", "internal/flow/conntrack", "internal/flow/conntrack/share", "internal/gateway/server", "internal/kube", "internal/kube/loadbalancer", "internal/loadbalancer/bgp", "internal/loadbalancer/edge", "internal/loadbalancer/layer2", "internal/networkpolicy/enforcer", "internal/podnetwork/node", "internal/podnetwork/node/obstacles", "internal/proxy", "internal/proxy/health"}

// programs are those with a table in docs/metrics.md, and their collectors.
var programs = map[string]func(*testing.T) []prometheus.Collector{
	"agent":      agentCollectors,
	"controller": func(*testing.T) []prometheus.Collector { return []prometheus.Collector{new(loadbalancer.Addresses)} },
	"edge":       func(*testing.T) []prometheus.Collector { return []prometheus.Collector{edge.NewMetrics()} },
	"gateway": func(t *testing.T) []prometheus.Collector {
		s, err := server.New(server.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return []prometheus.Collector{s}
	},
	"names": func(*testing.T) []prometheus.Collector { return []prometheus.Collector{names.NewMetrics()} },
	"speaker": func(*testing.T) []prometheus.Collector {
		r := &recorder{Registry: prometheus.NewRegistry()}
		layer2.NewMetrics(r, "node")
		bgp.NewMetrics(r)
		return append(r.all, new(loadbalancer.BGP).Metrics())
	},
}

// agentCollectors are all collectors of our own that an agent registers, in any mode.
func agentCollectors(t *testing.T) (all []prometheus.Collector) {
	t.Helper()
	client, err := kube.Connect(kube.Connection{Master: "http://127.0.0.1:1", UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for _, mode := range []string{datapath.IPTables, datapath.NFTables} { // which have metrics of their own
		r := &recorder{Registry: prometheus.NewRegistry()}
		proxy.NewMetrics(proxy.MetricsConfig{Registry: r, Mode: mode, Changes: func() service.Changes { return service.Changes{} }})
		all = append(all, r.all...)
	}
	r := &recorder{Registry: prometheus.NewRegistry()}
	node.New(node.Config{Log: log, Registry: r})
	ended, end := context.WithCancel(t.Context())
	end()
	if err := (&obstacles.Watcher{Log: log, Registry: r, Pods: func() []netip.Prefix { return nil }, Event: func(string, string) {}, Now: func(string) {}}).Run(ended); err != nil {
		t.Fatal(err)
	}
	room := conntrack.Room{Log: log, Registry: r, Event: func(string, string) {}, Now: func(string) {}}
	if err := room.Run(ended); err != nil {
		t.Fatal(err)
	}
	if err := (&share.Keeper{Log: log, Registry: r, Fill: func() (int, int, bool) { return 0, 0, false }}).Run(ended); err != nil {
		t.Fatal(err)
	}
	enforcer.NewMetrics(r)
	all = append(all, r.all...)
	all = append(all, kube.New(kube.Config{Log: log, Client: client}), agent.NewReleasePending(), agent.NewDeadNodes(liveness.NewFollower()))
	r = &recorder{Registry: prometheus.NewRegistry()}
	health.New(health.Config{Log: log, Registry: r.Registry, ProxyMode: "nftables", Version: "v"})
	return append(all, r.Registry)
}

// A row is one metric in docs/metrics.md.
type row struct{ name, kind, labels, help string }

var descForm = regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "([^"]*)",(?: unit: "",)? constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

// rowOf reads what a metric is called, and what its labels and its HELP text are.
func rowOf(t *testing.T, d *prometheus.Desc) row {
	m := descForm.FindStringSubmatch(d.String())
	if m == nil {
		t.Fatalf("cannot read %v", d)
	}
	var labels []string
	for pair := range strings.SplitSeq(m[3], ",") {
		if name, _, ok := strings.Cut(pair, "="); ok {
			labels = append(labels, "`"+name+"`")
		}
	}
	for name := range strings.SplitSeq(m[4], ",") {
		if name != "" {
			labels = append(labels, "`"+name+"`")
		}
	}
	kind := "gauge"
	switch {
	case strings.HasSuffix(m[1], "_duration_seconds"):
		kind = "histogram"
	case strings.HasSuffix(m[1], "_total"), strings.HasPrefix(m[1], "metallb_layer2_"):
		kind = "counter"
	}
	return row{m[1], kind, strings.Join(labels, ", "), m[2]}
}

// rows are all metrics of some collectors. The type follows from the name, but what a collector shows
// when nothing has happened yet is believed more.
func rows(t *testing.T, collectors []prometheus.Collector) []row {
	all := map[string]row{}
	for _, c := range collectors {
		_, pools := c.(*loadbalancer.Addresses) // gauges, though MetalLB's names end in _total
		_, routers := c.(*bgp.Metrics)          // it shows nothing without a session
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			r := rowOf(t, d)
			switch {
			case pools, routers && (strings.HasSuffix(r.name, "_up") || strings.HasSuffix(r.name, "_prefixes_total")):
				r.kind = "gauge"
			case routers:
				r.kind = "counter"
			}
			all[r.name] = r
		}
		if pools || routers || fmt.Sprintf("%T", c) == "*proxy.carried" {
			continue // it asks the loop, which does not run; all of it are counters
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(c)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			r := all[f.GetName()]
			r.kind = strings.ToLower(f.GetType().String())
			all[f.GetName()] = r
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b row) int { return strings.Compare(a.name, b.name) })
}

// TestMetricsAreDocumented: docs/metrics.md and docs/metrics-agent.md have a row for every metric of each program, and no
// other.
func TestMetricsAreDocumented(t *testing.T) {
	for program, collectors := range programs {
		var table strings.Builder
		for _, r := range rows(t, collectors(t)) {
			fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", r.name, r.kind, r.labels, r.help)
		}
		page, end := "../../docs/metrics.md", "<!-- end -->"
		if program == "agent" {
			page = "../../docs/metrics-agent.md"
		}
		begin := "<!-- " + program + ": written by go test ./cmd/fairway -run TestMetrics -update -->\n"
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, ok := strings.Cut(string(text), begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s lacks %q", page, begin)
		}
		want := before + begin + "| metric | type | labels | meaning |\n|---|---|---|---|\n" + table.String() + end + after
		if *update {
			if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if string(text) != want {
			t.Errorf("%s is not what the registry has: go test ./cmd/fairway -run TestMetrics -update\n%s", page, table.String())
		}
	}
}

// TestHelpTexts holds one style: a phrase that begins with a capital and has no full stop.
func TestHelpTexts(t *testing.T) {
	good := regexp.MustCompile(`^[A-Z1][^\[\]:]*[^.]$`)
	var all []row
	for _, collectors := range programs {
		all = append(all, rows(t, collectors(t))...)
	}
	for _, r := range all {
		if !good.MatchString(r.help) || len(r.help) > 120 {
			t.Errorf("%s: HELP %q: one phrase of at most 120 letters, with a capital, without full stop, colon and brackets", r.name, r.help)
		}
	}
}

// TestExporters: no package makes metrics that the tests above do not see.
func TestExporters(t *testing.T) {
	found := map[string]bool{}
	for _, root := range []string{"cmd", "internal"} {
		err := filepath.WalkDir("../../"+root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err == nil && regexp.MustCompile(`(prometheus|promauto)\.New(Desc|Counter|Gauge|Histogram|Summary)`).Match(text) {
				found[strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../../")] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, exporters) {
		t.Errorf("metrics are made in %v, known are %v: add the new ones to programs and exporters", got, exporters)
	}
}
