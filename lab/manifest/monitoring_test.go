package manifest

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMonitoring: kustomize builds examples/monitoring.
func TestMonitoring(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "monitoring"), os.DirFS("../../examples/monitoring")); err != nil {
		t.Fatal(err)
	}
	objects, err := Build(filepath.Join(dir, "overlay"), "../../deploy", `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../monitoring]
`, "")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, o := range objects {
		kinds[o.GetKind()]++
	}
	if kinds["PodMonitor"] != 5 || kinds["PrometheusRule"] != 1 {
		t.Errorf("got %v", kinds)
	}
}
