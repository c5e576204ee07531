package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// settingsHash is an annotation of pods. A change of the settings replaces the pods one after the other, and a run can
// wait for it.
const settingsHash = "fairway.net/settings-hash"

// stamp writes the hash of the settings into the agents' pod template.
func stamp(all []*unstructured.Unstructured) error {
	var data map[string]string
	for _, o := range all {
		if o.GetKind() == "ConfigMap" && o.GetName() == agentName {
			data, _, _ = unstructured.NestedStringMap(o.Object, "data")
		}
	}
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode the settings: %w", err)
	}
	hash := sha256.Sum256(text)
	for _, o := range all {
		if o.GetKind() != "DaemonSet" || o.GetName() != agentName {
			continue
		}
		err := unstructured.SetNestedField(o.Object, hex.EncodeToString(hash[:8]), "spec", "template", "metadata", "annotations", settingsHash)
		if err != nil {
			return fmt.Errorf("annotate %s: %w", objects.RefOf(o), err)
		}
	}
	return nil
}
