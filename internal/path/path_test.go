package path_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/kube"
	kubepath "github.com/fairway-net/fairway/internal/kube/path"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/service"
)

var update = flag.Bool("update", false, "write the answers into the files of testdata")

// facts are those of an agent with the defaults: NodePorts at the primary addresses, pods in 10.244.0.0/16.
func facts(n kube.Node) service.Node {
	s := service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}, NodeIPs: n.Primary()}
	for _, a := range n.Primary() {
		s.NodePorts = append(s.NodePorts, netip.PrefixFrom(a, a.BitLen()))
	}
	return service.Node{Settings: s, OwnAddrs: service.NewAddrSet(n.Addrs...), Limits: service.DefaultLimits()}
}

// cluster reads objects next to those of base.yaml. The lines before them are settings: mode, pod-network, not-enforced, announced.
func cluster(t *testing.T, settings, objects string) *path.Cluster {
	t.Helper()
	base, err := os.ReadFile("testdata/base.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var o kubepath.Objects
	if err := o.Parse(strings.NewReader(string(base)+"\n---\n"+objects), "default"); err != nil {
		t.Fatal(err)
	}
	c := o.Cluster(facts)
	c.Mode, c.PodNetwork = "nftables", "routes"
	for line := range strings.Lines(settings) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name {
		case "mode":
			c.Mode = value
		case "pod-network":
			c.PodNetwork = value
		case "not-enforced":
			c.NotEnforced = value
		case "announced": // ADDRESS NODE,… HOW, or ADDRESS - REASON
			f := strings.SplitN(value, " ", 3)
			a := path.Announcement{Nodes: strings.Split(f[1], ","), How: f[2]}
			if f[1] == "-" {
				a = path.Announcement{Reason: f[2]}
			}
			if c.Announced == nil {
				c.Announced = map[netip.Addr]path.Announcement{}
			}
			c.Announced[netip.MustParseAddr(f[0])] = a
		}
	}
	return c
}

func ask(t *testing.T, c *path.Cluster, line string) *path.Path {
	t.Helper()
	f := strings.Fields(line)
	if len(f) != 2 {
		t.Fatalf("%q is not FROM TO", line)
	}
	from, err := path.ParseFrom(f[0], "shop")
	if err != nil {
		t.Fatal(err)
	}
	to, err := path.ParseTo(f[1], "shop")
	if err != nil {
		t.Fatal(err)
	}
	p, err := path.Predict(c, path.Question{From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestText predicts the questions of each file: objects in, text or JSON out. A file has the objects of a fault, and next
// to them those of its healthy twin, which has no finding. The first finding's code is in the file's name.
func TestText(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts := map[string]string{}
			for _, f := range a.Files {
				texts[f.Name] = string(f.Data)
			}
			c := cluster(t, string(a.Comment), texts["objects.yaml"])
			for i := range a.Files {
				f := &a.Files[i]
				question, asJSON := strings.CutPrefix(f.Name, "json ")
				question, isAsk := strings.CutPrefix(question, "ask ")
				if !isAsk && !asJSON {
					continue
				}
				p := ask(t, c, question)
				got := render(t, p, asJSON)
				if *update {
					f.Data = []byte(got)
				} else if got != string(f.Data) {
					t.Errorf("%s\n--- got\n%s--- want\n%s", f.Name, got, f.Data)
				}
				if twin := texts["healthy.yaml"]; twin != "" {
					checkFault(t, p, question)
					checkHealthy(t, ask(t, cluster(t, string(a.Comment), twin), question), question)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func render(t *testing.T, p *path.Path, asJSON bool) string {
	t.Helper()
	var out bytes.Buffer
	if asJSON {
		enc := json.NewEncoder(&out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		if err := enc.Encode(p); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if err := p.WriteText(&out, path.Style{}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 81 && !strings.HasPrefix(line, "  [") {
			t.Errorf("longer than 80 columns: %s", line)
		}
	}
	return out.String()
}

// checkFault: one fault has one cause.
func checkFault(t *testing.T, p *path.Path, question string) {
	t.Helper()
	if len(p.Findings) != 1 {
		t.Errorf("%s: %d findings: %+v", question, len(p.Findings), p.Findings)
	}
}

func checkHealthy(t *testing.T, p *path.Path, question string) {
	t.Helper()
	if len(p.Findings) > 0 || p.Verdict.Predicted != path.Delivered && p.Verdict.Predicted != path.Accepted {
		t.Errorf("healthy, %s: %s, %+v\n%s", question, p.Verdict.Predicted, p.Findings, render(t, p, false))
	}
}
