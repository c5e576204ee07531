package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const fileKind = "KubeProxyConfiguration"

// readFile reads a KubeProxyConfiguration.
func readFile(path string) (*v1alpha1.KubeProxyConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	kp, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	return kp, nil
}

var documentStart = regexp.MustCompile(`(?m)^---`)

// decode reads the YAML or JSON of a KubeProxyConfiguration. It is strict, where
// kube-proxy only warns: a misspelt field is an option that has no effect.
func decode(data []byte) (*v1alpha1.KubeProxyConfiguration, error) {
	documents := 0
	for _, d := range documentStart.Split(string(data), -1) {
		if strings.TrimSpace(d) != "" {
			documents++
		}
	}
	if documents > 1 {
		return nil, errors.New("it holds more than one YAML document [leave only the " + fileKind + "]")
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, flat(err)
	}
	// The kind comes first: in a file of another kind every field is unknown.
	var kp v1alpha1.KubeProxyConfiguration
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &head); err != nil {
		return nil, fmt.Errorf("it is no %s: %w", fileKind, flat(err))
	}
	if want := v1alpha1.SchemeGroupVersion.String(); head.APIVersion != want || head.Kind != fileKind {
		return nil, fmt.Errorf("it is apiVersion %q, kind %q; want apiVersion %q, kind %q", head.APIVersion, head.Kind, want, fileKind)
	}
	strict, err := json.UnmarshalStrict(text, &kp)
	if err == nil {
		err = errors.Join(strict...)
	}
	if err != nil {
		return nil, flat(err)
	}
	return &kp, nil
}

// flat puts an error into one line.
func flat(err error) error {
	return errors.New(strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; "))
}
