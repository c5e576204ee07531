package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/objects"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// settingsHash is an annotation of pods. A change of the settings of a program replaces its pods one after the other, and
// a run can wait for it.
const settingsHash = "fairway.net/settings-hash"

// stamp writes the hash of each program's settings into its pod template.
func stamp(all []*unstructured.Unstructured) error {
	var data map[string]string
	for _, o := range all {
		if o.GetKind() == "ConfigMap" && o.GetName() == agentName {
			data, _, _ = unstructured.NestedStringMap(o.Object, "data")
		}
	}
	for _, o := range workloads(all) {
		hash, err := hashOf(data, strings.TrimPrefix(o.GetName(), "fairway-"))
		if err != nil {
			return err
		}
		if err := unstructured.SetNestedField(o.Object, hash, "spec", "template", "metadata", "annotations", settingsHash); err != nil {
			return fmt.Errorf("annotate %s: %w", objects.RefOf(o), err)
		}
	}
	return nil
}

// hashOf returns the hash of a program's settings.
func hashOf(data map[string]string, program string) (string, error) {
	own := map[string]string{}
	for _, s := range settings.Of(program) {
		if value, ok := data[s.Key]; ok {
			own[s.Key] = value
		}
	}
	text, err := json.Marshal(own)
	if err != nil {
		return "", fmt.Errorf("encode the settings: %w", err)
	}
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:8]), nil
}
