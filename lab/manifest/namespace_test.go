package manifest

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

var namespaceBlock = regexp.MustCompile("(?s)<!-- test: another namespace -->\n```yaml\n(.*?)```")

// TestAnotherNamespace: with the patches in docs/loadbalancer.md, every component uses the objects of metallb.io in
// another namespace.
func TestAnotherNamespace(t *testing.T) {
	doc, err := os.ReadFile("../../docs/loadbalancer.md")
	if err != nil {
		t.Fatal(err)
	}
	found := namespaceBlock.FindSubmatch(doc)
	if found == nil {
		t.Fatal("docs/loadbalancer.md has no such block")
	}
	objects, err := Build(t.TempDir(), "../../deploy", "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [deploy]\ncomponents: [deploy/components/load-balancer]\n"+string(found[1]), image)
	if err != nil {
		t.Fatal(err)
	}
	has := 0
	for _, o := range objects {
		text, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "metallb-system") {
			t.Errorf("%s %s still has the former namespace: %s", o.GetKind(), o.GetName(), text)
		}
		if o.GetNamespace() == "metallb" || o.GetKind() == "Namespace" && o.GetName() == "metallb" || strings.Contains(string(text), "namespace=metallb") || strings.Contains(string(text), "'metallb'") {
			has++
		}
	}
	if want := 8; has != want { // Namespace, two Roles with bindings, policy, controller, speaker
		t.Errorf("%d objects have the namespace, want %d", has, want)
	}
}
