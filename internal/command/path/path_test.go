package path

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/path"
)

// web is a Service of two pods on other nodes than the client's: traffic policy Local drops.
const web = `
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: web}
  spec: {clusterIP: 10.96.0.9, selector: {app: web}, internalTrafficPolicy: POLICY, ports: [{port: 80, targetPort: 8080}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: web-1, labels: {app: web}}
  spec: {nodeName: node-2, containers: [{name: main}]}
  status: {phase: Running, podIPs: [{ip: 10.244.2.6}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{port: 8080}]
  endpoints: [{addresses: [10.244.2.6], nodeName: node-2, targetRef: {kind: Pod, name: web-1}}]
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}
`

// run runs the command as a person does, with the base objects of internal/path and web.
func run(t *testing.T, policy string, args ...string) (out string, status int, err error) {
	t.Helper()
	t.Setenv("KUBECONFIG", "/nonexistent")
	t.Setenv("NO_COLOR", "")
	var stdout bytes.Buffer
	c := New(command.Env{Stdin: strings.NewReader(strings.ReplaceAll(web, "POLICY", policy)), Stdout: &stdout, Stderr: &bytes.Buffer{}})
	c.SetArgs(append([]string{"-n", "shop", "-f", "../../path/testdata/base.yaml,-", "--cluster-cidr=10.244.0.0/16"}, args...))
	c.SetContext(context.Background())
	c.SilenceErrors, c.SilenceUsage = true, true
	err = c.Execute()
	var exit command.ExitError
	var failed command.Failed
	switch {
	case errors.As(err, &exit):
		status = int(exit)
	case errors.As(err, &failed):
		status = failed.Status
	case err != nil:
		status = -1
	}
	return stdout.String(), status, err
}

func TestPath(t *testing.T) {
	for _, c := range []struct {
		policy string
		args   []string
		status int
		want   string // in the output, or in the error
	}{
		{"Cluster", []string{"pod/cart", "svc/web"}, 0, "✓ delivered"},
		{"Cluster", []string{"pod/shop/cart", "svc/shop/web:80"}, 0, "10.244.2.6:8080"},
		{"Local", []string{"pod/cart", "svc/web"}, notDelivered, "no endpoint is on node-1: dropped; 1 is on"},
		{"Local", []string{"pod/cart", "svc/web", "--expect=dropped"}, 0, "✗ dropped"},
		{"Cluster", []string{"pod/cart", "svc/web", "--expect=dropped", "--predict"}, notDelivered, "✓ delivered"},
		{"Cluster", []string{"pod/card", "svc/web"}, notProved, "there is no pod shop/card"},
		{"Cluster", []string{"pod/cart", "svc/web", "--expect=lost"}, notProved, "choose one of"},
		{"Cluster", []string{"pod/cart", "svc/web", "-o", "svg", "--predict"}, 0, "<svg"},
		{"Cluster", []string{"pod/cart", "svc/web", "-o", "yaml", "--predict"}, 0, "version: 1"},
		{"Cluster", []string{"pod/cart", "svc/web", "-o", "png"}, notProved, "choose one of text, wide, json, yaml, svg"},
		{"Cluster", []string{"cart", "svc/web"}, notProved, "is no place"},
		{"Cluster", []string{"pod/cart", "deploy/web"}, notProved, "is no destination"},
		{"Cluster", []string{"pod/cart", "10.244.2.6"}, notProved, "needs a port"},
	} {
		out, status, err := run(t, c.policy, c.args...)
		if err != nil {
			out += err.Error()
		}
		if status != c.status || !strings.Contains(out, c.want) {
			t.Errorf("%s %v: status %d\n%s\nwant %d and %q", c.policy, c.args, status, out, c.status, c.want)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%v: colors in what is no terminal", c.args)
		}
	}
}

func TestJSON(t *testing.T) {
	out, status, err := run(t, "Cluster", "pod/cart", "svc/web", "-o", "json")
	var p path.Path
	if err != nil || status != 0 || json.Unmarshal([]byte(out), &p) != nil || p.Verdict.Predicted != path.Delivered || p.Mode["node-1"] != "nftables" {
		t.Errorf("status %d, %v: %s", status, err, out)
	}
}

// A file that does not exist, or is no manifest, is an error that names it.
func TestFiles(t *testing.T) {
	file := t.TempDir() + "/broken.yaml"
	if err := os.WriteFile(file, []byte("kind: Service\nspec: {ports: 7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, file + ".not"} {
		_, status, err := run(t, "Cluster", "-f", name, "pod/cart", "svc/web")
		if status != notProved || err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: status %d, %v", name, status, err)
		}
	}
}
