package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// A printer writes nodes as YAML with template actions.
type printer struct{ bytes.Buffer }

func (p *printer) line(indent int, format string, args ...any) {
	p.WriteString(strings.Repeat(" ", indent))
	fmt.Fprintf(p, format+"\n", args...)
}

// each writes nodes. Consecutive nodes with the same conditions share one.
func (p *printer) each(nodes []*node, indent int, write func(*node)) {
	open := ""
	for i, n := range nodes {
		when := ""
		if len(n.when) > 0 {
			when = either(n.when)
		}
		if when != "" && when != open {
			p.line(indent, "{{- if %s }}", when)
		}
		write(n)
		open = when
		if when != "" && (i == len(nodes)-1 || len(nodes[i+1].when) == 0 || either(nodes[i+1].when) != when) {
			p.line(indent, "{{- end }}")
		}
	}
}

func (p *printer) fields(n *node, indent int) {
	p.each(n.fields, indent, func(f *node) { p.field(f, indent) })
}

func (p *printer) field(f *node, indent int) {
	key := scalar(f.key)
	switch {
	case f.list && len(f.items) == 0:
		p.line(indent, "%s: []", key)
	case f.list:
		p.line(indent, "%s:", key)
		p.items(f, indent)
	case f.cases == nil && len(f.fields) == 0:
		p.line(indent, "%s: {}", key)
	case f.cases == nil:
		p.line(indent, "%s:", key)
		p.fields(f, indent+2)
	default:
		if b, ok := f.cases[0].value.(block); ok {
			p.block(key, b, indent)
			return
		}
		p.line(indent, "%s: %s", key, choice(f.cases))
	}
}

func (p *printer) block(key string, b block, indent int) {
	if b.include != "" {
		p.line(indent, "%s:", key)
		p.line(indent+2, "{{- include %q . | nindent %d }}", b.include, indent+2)
		return
	}
	name := ".Values." + b.name
	if b.optional {
		p.line(indent, "{{- with %s }}", name)
		defer p.line(indent, "{{- end }}")
		name = "."
	}
	p.line(indent, "%s:", key)
	p.line(indent+2, "{{- toYaml %s | nindent %d }}", name, indent+2)
}

func (p *printer) items(n *node, indent int) {
	p.each(n.items, indent, func(item *node) {
		if item.cases != nil {
			p.line(indent, "- %s", choice(item.cases))
			return
		}
		var inner printer
		inner.fields(item, indent+2)
		p.WriteString(strings.Repeat(" ", indent) + "- " + inner.String()[indent+2:])
	})
}

// objects writes the documents of a file, under a condition for all.
func (p *printer) objects(all []*node, when string) []byte {
	p.WriteString(generated + "{{- if " + when + " }}\n")
	p.each(all, 0, func(n *node) {
		p.line(0, "---")
		p.fields(n, 0)
	})
	p.WriteString("{{- end }}\n")
	return p.Bytes()
}

// choice returns a scalar that depends on conditions.
func choice(cases []version) string {
	var out strings.Builder
	last := len(cases) - 1
	for i, c := range cases[:last] {
		word := "else if"
		if i == 0 {
			word = "if"
		}
		fmt.Fprintf(&out, "{{ %s %s }}%s", word, c.when, scalar(c.value))
	}
	if last == 0 {
		return scalar(cases[0].value)
	}
	return out.String() + "{{ else }}" + scalar(cases[last].value) + "{{ end }}"
}

// scalar returns a value as YAML inside a template.
func scalar(value any) string {
	if e, ok := value.(expr); ok {
		return string(e)
	}
	out, err := yaml.Marshal(value)
	text := strings.TrimSuffix(string(out), "\n")
	if err != nil || strings.Contains(text, "\n") { // folded
		out, _ = json.Marshal(value) // a JSON string is a YAML string
		text = string(out)
	}
	return strings.ReplaceAll(text, "{{", `{{ "{{" }}`)
}
