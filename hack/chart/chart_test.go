package chart

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/deploy"
)

// TestFiles: the same bytes each time, and a README that has every value. What the chart
// renders to is tested in test/chart, with Helm.
func TestFiles(t *testing.T) {
	c := Chart{Manifests: deploy.Files, Version: "v1.2.3", Image: "registry.example:5000/fairway:v1", Readme: "[x](../deploy)\n"}
	var archives [2][]byte
	for i := range archives {
		files, err := c.Files()
		if err != nil {
			t.Fatal(err)
		}
		if archives[i], err = Archive(files); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"| `apiServer` |", "| `agent.resources` |", "| `components.loadBalancer` | `false` |", "/tree/main/deploy)"} {
			if !strings.Contains(string(files["README.md"]), want) {
				t.Errorf("README.md has no %q", want)
			}
		}
		for _, want := range []string{"repository: registry.example:5000/fairway\n", "tag: v1\n", "\nproxyMode: nftables\n"} {
			if !strings.Contains(string(files["values.yaml"]), want) {
				t.Errorf("values.yaml has no %q", want)
			}
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the same sources make two archives")
	}
}

func m(pairs ...any) map[string]any {
	out := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(string)] = pairs[i+1]
	}
	return out
}

// TestMerge: what versions have in common is text, in what they differ is under their conditions.
func TestMerge(t *testing.T) {
	for _, c := range []struct {
		name     string
		versions []version
		want     string
	}{
		{"nothing differs", []version{{"", m("a", int64(1))}, {".A", m("a", int64(1))}}, "a: 1\n"},
		{"a field more", []version{{"", m("a", "x")}, {".A", m("a", "x", "b", []any{})}}, "a: x\n{{- if .A }}\nb: []\n{{- end }}\n"},
		{"a scalar differs", []version{{"", m("a", "x")}, {".A", m("a", "w")}, {".B", m("a", "z")}, {".C", m("a", "w")}, {".D", m("a", "x")}},
			"a: {{ if or .A .C }}w{{ else if .B }}z{{ else }}x{{ end }}\n"},
		{"elements by name", []version{{"", m("l", []any{m("name", "1")})}, {"eq .A 1", m("l", []any{m("name", "2", "v", m()), m("name", "1")})}, {".B", m("l", []any{m("name", "1"), m("name", "2", "v", m())})}},
			"l:\n- name: \"1\"\n{{- if or (eq .A 1) .B }}\n- name: \"2\"\n  v: {}\n{{- end }}\n"},
		{"arguments", []version{{".A", m("l", []any{"a", "b"})}, {".B", m("l", []any{"a", "b", "c"})}}, "l:\n- a\n- b\n{{- if .B }}\n- c\n{{- end }}\n"},
		{"neighbours", []version{{"", m()}, {".A", m("a", "1x", "b", true)}}, "{{- if .A }}\na: 1x\nb: true\n{{- end }}\n"},
		{"texts that are no YAML", []version{{"", m("a", "{{ x }}", "b", "x: y\nz")}}, "a: '{{ \"{{\" }} x }}'\nb: \"x: y\\nz\"\n"},
	} {
		n, err := merge(c.versions)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var p printer
		p.fields(n, 0)
		if p.String() != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, &p, c.want)
		}
	}
	for want, versions := range map[string][]version{
		"b: a component removes it": {{"", m("b", "x")}, {".A", m()}},
		"l: the list has":           {{"", m("l", []any{"x", "x"})}, {".A", m("l", []any{"y"})}},
	} {
		if _, err := merge(versions); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
