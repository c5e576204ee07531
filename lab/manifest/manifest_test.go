package manifest

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [deploy]
patches:
- target: {kind: ConfigMap, name: settings}
  patch: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: settings}
    data: {MODE: changed}
`

// TestBuild: Build patches the objects and does not write to the base. An object comes after the objects that it needs.
func TestBuild(t *testing.T) {
	base := t.TempDir()
	write(t, base, "kustomization.yaml", "resources: [settings.yaml, space.yaml]\n")
	write(t, base, "settings.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: a}\ndata: {MODE: as it was, KEPT: yes it is}\n")
	write(t, base, "space.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
	dir := filepath.Join(t.TempDir(), "overlay")
	for range 2 { // the second round overwrites the first
		objects, err := Build(dir, base, overlay, "")
		if err != nil {
			t.Fatal(err)
		}
		if len(objects) != 2 || objects[0].GetKind() != "Namespace" || objects[1].GetKind() != "ConfigMap" {
			t.Fatalf("objects are %v", objects)
		}
		data, _, err := unstructured.NestedStringMap(objects[1].Object, "data")
		if err != nil || data["MODE"] != "changed" || data["KEPT"] != "yes it is" {
			t.Errorf("data are %v, %v", data, err)
		}
	}
	if entries, err := os.ReadDir(base); err != nil || len(entries) != 3 {
		t.Errorf("the base holds %v, %v", entries, err)
	}
}

func TestBuildFails(t *testing.T) {
	if _, err := Build(t.TempDir(), t.TempDir(), overlay, ""); err == nil {
		t.Error("a base without kustomization.yaml was built")
	}
	if _, err := Build(t.TempDir(), "/nonexistent", overlay, ""); err == nil {
		t.Error("a base that does not exist was built")
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
