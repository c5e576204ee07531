package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// nodeYAML is the node of a scenario, as the API server has it.
const nodeYAML = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1"},"status":{"addresses":[
	{"type":"InternalIP","address":"172.18.0.11"},{"type":"InternalIP","address":"fd00:172:18::11"}]}}`

// apiServer answers streaming lists of a scenario's objects, and nothing else.
func apiServer(t *testing.T, name string) (url, want string) {
	t.Helper()
	dir, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	file, err := txtar.ParseFile(filepath.Join(dir, name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string][]any{"Node": {json.RawMessage(nodeYAML)}}
	for _, f := range file.Files {
		switch f.Name {
		case "explain":
			want = string(f.Data)
		case "objects.yaml":
			for doc := range strings.SplitSeq(string(f.Data), "\n---\n") {
				var o map[string]any
				if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
					t.Fatal(err)
				}
				o["metadata"].(map[string]any)["namespace"] = "default"
				kind := o["kind"].(string)
				objects[kind] = append(objects[kind], o)
			}
		}
	}
	mux := http.NewServeMux()
	for path, kind := range map[string][2]string{
		"/api/v1/services": {"Service", "v1"},
		"/api/v1/nodes":    {"Node", "v1"},
		"/apis/discovery.k8s.io/v1/endpointslices": {"EndpointSlice", "discovery.k8s.io/v1"},
		"/apis/networking.k8s.io/v1/servicecidrs":  {"ServiceCIDR", "networking.k8s.io/v1"},
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			enc := json.NewEncoder(w)
			for _, o := range objects[kind[0]] {
				_ = enc.Encode(map[string]any{"type": "ADDED", "object": o})
			}
			_ = enc.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
				"kind": kind[0], "apiVersion": kind[1],
				"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]string{"k8s.io/initial-events-end": "true"}},
			}})
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // runs first: a watch never ends by itself
	return server.URL, want
}

// explain runs the command as a user does.
func explain(args ...string) (out, errs string, code int) {
	var stdout, stderr bytes.Buffer
	code = run(context.Background(), command.Env{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}, append([]string{"explain"}, args...))
	return stdout.String(), stderr.String(), code
}

// Objects at an API server in, text out: what the scenario says.
func TestExplain(t *testing.T) {
	for name, flags := range map[string][]string{
		"external-local":           {"--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"},
		"external-local-no-detect": nil,
		"terminating-fallback":     {"--cluster-cidr=10.244.0.0/16"},
		"weights-unavailable":      {"--cluster-cidr=10.244.0.0/16"},
		"weights-explain":          {"--cluster-cidr=10.244.0.0/16"},
	} {
		t.Run(name, func(t *testing.T) {
			url, want := apiServer(t, name)
			out, errs, code := explain(append(flags, "default/web", "--master="+url, "--hostname-override=node-1")...)
			if code != 0 || out != want || want == "" {
				t.Errorf("status %d, error %s\n--- got\n%s--- want\n%s", code, errs, out, want)
			}
			if short, errs, _ := explain(append(flags, "default/web", "--master="+url, "--node=node-1")...); short != out {
				t.Errorf("with --node: %s%s", short, errs)
			}
		})
	}
}

func TestExplainJSON(t *testing.T) {
	url, _ := apiServer(t, "external-local")
	out, errs, code := explain("default/web", "--from=outside", "-o", "json", "--master="+url, "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16")
	if code != 0 {
		t.Fatalf("status %d: %s", code, errs)
	}
	var r service.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Frontends {
		if len(f.Traffic) != 1 || f.Traffic[0].From != service.FromOutside {
			t.Fatalf("%s: traffic %+v", f.Address, f.Traffic)
		}
	}
	nodePort := r.Frontends[len(r.Frontends)-1].Traffic[0]
	got := fmt.Sprintf("%s, %s sees the %s, %v", nodePort.Action, r.Node, nodePort.Source, nodePort.Endpoints)
	want := "forward, node-1 sees the client, [" +
		"{[fd00:10:244:1::5]:8080  node-1 web-2 true  <nil>} {[fd00:10:244:2::5]:8080  node-2 web-2 false on another node, and the traffic policy is Local <nil>}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What makes no sense is one line that says what to write.
func TestExplainRefuses(t *testing.T) {
	url, _ := apiServer(t, "headless")
	for want, args := range map[string][]string{
		"\"web\" does not name a Service\nhint: write NAMESPACE/SERVICE\n":         {"web"},
		"--from: \"moon\" is not a place\nhint: choose pod, node or outside\n":     {"default/web", "--from=moon"},
		"\"xml\" is not a format\nhint: choose one of table":                       {"default/web", "-o", "xml"},
		"there is no Service default/other\nhint: kubectl get services -n default": {"default/other"},
		"accepts 1 arg(s), received 0":                                             nil,
	} {
		_, errs, code := explain(append(args, "--master="+url, "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16")...)
		if code != 1 || !strings.Contains(errs, want) || strings.Count(errs, "\n") > 2 {
			t.Errorf("%q: status %d, %s", args, code, errs)
		}
	}
}
