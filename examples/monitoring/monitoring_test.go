// Package monitoring_test reads the alerts and the dashboard as Prometheus' operator and Grafana
// would, as far as that can be done without them.
//
//	prometheusrule.yaml, dashboard.json ─▶ names of metrics ─▶ are they in docs/metrics.md?
package monitoring_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pages returns the pages with all metrics.
func pages(t *testing.T) string {
	t.Helper()
	return read(t, "../../docs/metrics.md") + read(t, "../../docs/metrics-agent.md")
}

var metric = regexp.MustCompile(`\b(fairway|kubeproxy|coredns|metallb)_[a-z_]+`)

// known checks that the page names every metric of an expression; coredns_ are CoreDNS's own.
func known(t *testing.T, where, expr, page string) {
	t.Helper()
	names := metric.FindAllString(expr, -1)
	if len(names) == 0 {
		t.Errorf("%s: %q has no metric of ours", where, expr)
	}
	for _, name := range names {
		if base := strings.TrimSuffix(name, "_bucket"); !strings.Contains(page, "`"+base+"`") {
			t.Errorf("%s: docs/metrics.md has no %s", where, base)
		}
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") {
		t.Errorf("%s: brackets of %q do not match", where, expr)
	}
}

func TestAlerts(t *testing.T) {
	var rule struct {
		Kind string
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr, For    string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "prometheusrule.yaml")), &rule); err != nil {
		t.Fatal(err)
	}
	page, remedies := pages(t), read(t, "../../docs/troubleshooting.md")
	n := 0
	for _, g := range rule.Spec.Groups {
		for _, a := range g.Rules {
			n++
			known(t, a.Alert, a.Expr, page)
			if !strings.Contains(page, "| `"+a.Alert+"` |") {
				t.Errorf("docs/metrics.md does not name the alert %s", a.Alert)
			}
			if a.For == "" || a.Labels["severity"] == "" || a.Annotations["summary"] == "" {
				t.Errorf("%s lacks for, severity or summary", a.Alert)
			}
			file, heading, _ := strings.Cut(a.Annotations["runbook_url"], "#")
			if file != "https://github.com/fairway-net/fairway/blob/main/docs/troubleshooting.md" || !hasHeading(remedies, heading) {
				t.Errorf("%s: %s has no heading #%s", a.Alert, file, heading)
			}
		}
	}
	if rule.Kind != "PrometheusRule" || n < 3 {
		t.Errorf("a %s with %d alerts", rule.Kind, n)
	}
}

// TestScrape: Prometheus with scrape.yaml finds the same pods as its operator with the PodMonitors.
func TestScrape(t *testing.T) {
	var config struct {
		ScrapeConfigs []struct {
			JobName string `json:"job_name"`
		} `json:"scrape_configs"`
	}
	if err := yaml.UnmarshalStrict([]byte(regexp.MustCompile(`(?m)^  (kubernetes_sd_configs|relabel_configs|- \{).*\n`).ReplaceAllString(read(t, "scrape.yaml"), "")), &config); err != nil {
		t.Fatal(err)
	}
	monitors := read(t, "podmonitor.yaml")
	for _, c := range config.ScrapeConfigs {
		if !strings.Contains(monitors, "app.kubernetes.io/name: "+c.JobName+"\n") {
			t.Errorf("no PodMonitor is for %s", c.JobName)
		}
	}
	if n := strings.Count(monitors, "kind: PodMonitor"); n != len(config.ScrapeConfigs) || n != 5 {
		t.Errorf("%d PodMonitors and %d jobs", n, len(config.ScrapeConfigs))
	}
}

// TestRulesAlone: the command in docs/metrics.md makes rules for Prometheus without its operator.
func TestRulesAlone(t *testing.T) {
	const command = `sed '1,/^spec:/d; s/^  //' prometheusrule.yaml`
	if !strings.Contains(pages(t), command) {
		t.Errorf("docs/metrics.md does not have %s", command)
	}
	out, err := exec.Command("sh", "-c", command).Output()
	if err != nil || !strings.HasPrefix(string(out), "groups:\n- name: fairway\n  rules:\n  - alert: ") {
		t.Errorf("%v: %s", err, out)
	}
}

// hasHeading looks for a heading by its anchor, made as GitHub makes it.
func hasHeading(page, anchor string) bool {
	for line := range strings.Lines(page) {
		if h, ok := strings.CutPrefix(line, "## "); ok {
			h = strings.ToLower(strings.TrimSpace(h))
			h = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(h, "")
			if strings.ReplaceAll(h, " ", "-") == anchor {
				return true
			}
		}
	}
	return false
}

func TestDashboard(t *testing.T) {
	for _, file := range []string{"dashboard.json", "dashboard-gateways.json"} {
		t.Run(file, func(t *testing.T) { dashboard(t, file) })
	}
}

func dashboard(t *testing.T, file string) {
	t.Helper()
	var board struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, file)), &board); err != nil {
		t.Fatal(err)
	}
	page := pages(t)
	seen := map[any]bool{}
	for _, p := range board.Panels {
		if seen[p.ID] || seen[p.GridPos] || len(p.Targets) == 0 {
			t.Errorf("panel %q has another's id or place, or shows nothing", p.Title)
		}
		seen[p.ID], seen[p.GridPos] = true, true
		for _, target := range p.Targets {
			known(t, p.Title, target.Expr, page)
		}
	}
	if len(board.Panels) < 8 {
		t.Errorf("%q has %d panels", board.Title, len(board.Panels))
	}
}
