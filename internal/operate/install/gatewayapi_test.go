package install

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestGatewayAPI: an installation of gateways names the CustomResourceDefinitions that are absent or of another release.
func TestGatewayAPI(t *testing.T) {
	for release, want := range map[string]string{"": "only Ingresses count [kubectl apply", "v1.9.0": `of release "v1.9.0", and stay`, gatewayAPI: ""} {
		api := newFake(t, cluster(t, "kubeadm"))
		if release != "" {
			crd := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
			crd.SetName("gateways.gateway.networking.k8s.io")
			crd.SetAnnotations(map[string]string{gatewayAPIVersion: release})
			if _, err := api.Apply(t.Context(), crd, false); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		o := tagged
		o.Components = []string{"servicelb", "gateway"}
		i := installer(api, &out)
		i.DryRun = true
		if err := i.Install(t.Context(), o); err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		if text := out.String(); !strings.Contains(text, want) || strings.Contains(text, "of Gateway API") != (want != "") {
			t.Errorf("release %q: want %q:\n%s", release, want, text)
		}
	}
}

// TestGatewayAPIRelease: the release is that of the module.
func TestGatewayAPIRelease(t *testing.T) {
	text, err := os.ReadFile("../../../go.mod")
	if err != nil || !strings.Contains(string(text), "sigs.k8s.io/gateway-api "+gatewayAPI+"\n") {
		t.Errorf("go.mod has another release than %s: %v", gatewayAPI, err)
	}
}
