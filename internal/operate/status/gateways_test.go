package status

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/kube"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
)

// TestGateways: the overview counts the gateways, and says what stops them.
func TestGateways(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*kube.Parts)
		level  Level
	}{
		"all work":      {func(*kube.Parts) {}, OK},
		"one is absent": {func(p *kube.Parts) { p.DaemonSets["fairway-gateway"].Available = 2 }, Attention},
		"no controller": {func(p *kube.Parts) { delete(p.Deployments, "fairway-controller") }, Attention},
	} {
		p, nodes := wellParts()
		p.DaemonSets["fairway-gateway"] = &kube.Workload{Name: "fairway-gateway", Wanted: 3, Available: 3, Command: []string{"fairway", "gateway"}}
		c.change(p)
		var found []Part
		for _, part := range JudgeParts(p, nodes, now) {
			if part.Name == "gateways" {
				found = append(found, part)
			}
		}
		if len(found) != 1 || found[0].Level != c.level || (found[0].Do == "") != (c.level == OK) {
			t.Errorf("%s: %+v, want %s", name, found, c.level)
		}
	}
}

// TestNames: the overview says whether names on other DNS servers are kept.
func TestNames(t *testing.T) {
	for available, want := range map[int]Level{1: OK, 0: Attention} {
		p, nodes := wellParts()
		p.Deployments["fairway-names"] = &kube.Workload{Name: "fairway-names", Wanted: 1, Available: available, Command: []string{"fairway", "names", "sync"}}
		found := slices.DeleteFunc(JudgeParts(p, nodes, now), func(part Part) bool { return part.Name != "names" })
		if len(found) != 1 || found[0].Level != want {
			t.Errorf("%d available: %+v, want %s", available, found, want)
		}
	}
}

// gateways are the Gateways of testdata/gateways.txtar, read from the API server's text.
func gateways(t *testing.T) Gateways {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/gateways.txtar")
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string][]unstructured.Unstructured{}
	for _, f := range archive.Files {
		for _, document := range strings.Split(string(f.Data), "\n---\n") {
			var o unstructured.Unstructured
			if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
				t.Fatal(err)
			}
			lists[f.Name] = append(lists[f.Name], o)
		}
	}
	o, err := kubegateway.NewOverview(lists["classes"], lists["gateways"], lists["sets"])
	if err != nil {
		t.Fatal(err)
	}
	o.Pods = kubegateway.Pods{Installed: true, Wanted: 3, Available: 3}
	o.Ingresses = &kubegateway.Ingresses{Count: 2, Addresses: []string{"192.0.2.30"}}
	return Gateways{o}
}

// TestGatewaysFit: no line of the table has more than 80 columns.
func TestGatewaysFit(t *testing.T) {
	text, err := os.ReadFile("testdata/gateways.table")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestGatewaysOK: a Gateway or a pod that does not work needs attention, and so do Gateways without pods.
func TestGatewaysOK(t *testing.T) {
	for name, c := range map[string]struct {
		only   string
		change func(*Gateways)
		ok     bool
		says   string
	}{
		"all":               {"", nil, false, "6 Gateways, 1 ok; gateway pods: 3 of 3 available"},
		"one that works":    {"shop/front", nil, true, "1 Gateway, 1 ok"},
		"a listener":        {"shop/half", nil, false, "NOT PROGRAMMED"},
		"a pod is absent":   {"shop/front", func(g *Gateways) { g.Pods.Available = 2 }, false, "2 of 3 available"},
		"no pods":           {"shop/front", func(g *Gateways) { g.Pods = kubegateway.Pods{} }, false, "fairway upgrade --component gateway"},
		"no Gateway API":    {"shop/front", func(g *Gateways) { g.Gateways, g.NoGatewayAPI = nil, true }, true, "Gateway API is not installed [docs/gateway.md]; gateway pods: 3"},
		"no address":        {"shop/front", func(g *Gateways) { g.Ingresses = &kubegateway.Ingresses{Count: 1} }, false, "Ingresses: 1 address none [kubectl"},
		"nothing installed": {"", func(g *Gateways) { *g = Gateways{} }, true, "No Gateway is here."},
	} {
		g := gateways(t)
		var names []string
		if c.only != "" {
			names = []string{c.only}
		}
		if err := g.Only(names); err != nil {
			t.Fatal(err)
		}
		if c.change != nil {
			c.change(&g)
		}
		var text bytes.Buffer
		if err := output.Write(&text, output.Table, g); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(text.String()), " "); g.OK() != c.ok || !strings.Contains(got, c.says) {
			t.Errorf("%s: ok %v, want %v, and %q in\n%s", name, g.OK(), c.ok, c.says, text.String())
		}
	}
	g := gateways(t)
	if err := g.Only([]string{"other/istio"}); err == nil || !strings.Contains(err.Error(), "no Gateway other/istio") {
		t.Errorf("a Gateway of another controller: %v", err)
	}
}
