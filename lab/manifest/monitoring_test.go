package manifest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestMonitoring: with examples/monitoring, the agent serves its metrics at the node's address. The port has the name
// that the PodMonitor uses.
func TestMonitoring(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "monitoring"), os.DirFS("../../examples/monitoring")); err != nil {
		t.Fatal(err)
	}
	objects, err := Build(filepath.Join(dir, "overlay"), "../../deploy", `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [deploy]
components: [../monitoring]
`, image)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, o := range objects {
		kinds[o.GetKind()]++
		if o.GetKind() != "DaemonSet" {
			continue
		}
		var agent appsv1.DaemonSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &agent); err != nil {
			t.Fatal(err)
		}
		c := agent.Spec.Template.Spec.Containers[0]
		if !slices.Contains(c.Command, "--metrics-bind-address=$(HOST_IP)") || len(c.Command) < 8 {
			t.Errorf("the agent's command is %q", c.Command)
		}
		names := []string{}
		for _, p := range c.Ports {
			names = append(names, p.Name)
		}
		if !slices.Contains(names, "metrics") || !slices.Contains(names, "healthz") {
			t.Errorf("the agent's ports are %q", names)
		}
	}
	if kinds["DaemonSet"] != 1 || kinds["PodMonitor"] != 2 || kinds["PrometheusRule"] != 1 {
		t.Errorf("got %v", kinds)
	}
}
