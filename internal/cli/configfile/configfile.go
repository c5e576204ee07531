// Package configfile reads a configuration file: YAML or JSON with one document of one kind.
//
//	bytes ─ one document? ─ apiVersion, kind? ─ no unknown field? ─→ a struct
//
// A misspelt field, a field that is there twice, and a file of another kind are errors of one line, because each would be
// an option without effect.
package configfile

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/text"
)

// A Kind is the required kind of a file.
type Kind struct{ APIVersion, Kind string }

// Read reads a file into a struct.
func Read(path string, want Kind, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if err := Decode(data, want, into); err != nil {
		return fmt.Errorf("read configuration %s: %w", path, err)
	}
	return nil
}

var documentStart = regexp.MustCompile(`(?m)^---`)

// Decode reads the text of a file.
func Decode(data []byte, want Kind, into any) error {
	documents := 0
	for _, d := range documentStart.Split(string(data), -1) {
		if strings.TrimSpace(d) != "" {
			documents++
		}
	}
	if documents > 1 {
		return errors.New("it holds more than one YAML document [leave only the " + want.Kind + "]")
	}
	data, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return text.OneLine(err)
	}
	// The kind comes first: in a file of another kind every field is unknown.
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return fmt.Errorf("it is no %s: %w", want.Kind, text.OneLine(err))
	}
	if head.APIVersion != want.APIVersion || head.Kind != want.Kind {
		return fmt.Errorf("it is apiVersion %q, kind %q; want apiVersion %q, kind %q", head.APIVersion, head.Kind, want.APIVersion, want.Kind)
	}
	strict, err := json.UnmarshalStrict(data, into)
	if err == nil {
		err = errors.Join(strict...)
	}
	return text.OneLine(err)
}
