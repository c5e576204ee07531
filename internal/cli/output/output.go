// Package output writes the result of a command, for people or for programs.
//
//	value ── -o table|wide ─→ its WriteTable
//	      └─ -o json|yaml ──→ its JSON fields
//
// JSON and YAML have the same fields. The error for an unknown format lists the known ones.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// A Format is a value of the flag -o.
type Format string

// The formats. The zero value is Table.
const (
	Table Format = "table"
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// Formats returns all formats.
func Formats() []string { return []string{string(Table), string(Wide), string(JSON), string(YAML)} }

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	if !slices.Contains(Formats(), text) {
		return fmt.Errorf("%q is not a format [choose one of %s]", text, strings.Join(Formats(), ", "))
	}
	*f = Format(text)
	return nil
}

// Type implements pflag.Value. It returns the name of the value in help texts.
func (f *Format) Type() string { return "format" }

// A Value is the result of a command. Its exported fields have JSON names.
type Value interface {
	// WriteTable writes a table for people; if wide, with all columns.
	WriteTable(w io.Writer, wide bool) error
}

// Write writes v in a format.
func Write(w io.Writer, f Format, v Value) error {
	switch f {
	case JSON:
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case YAML:
		text, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	return v.WriteTable(w, f == Wide)
}
