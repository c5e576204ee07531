package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/operate/settings"
)

// A value is a setting of the chart.
type value struct {
	path    []string // in values.yaml: a group and a name, or one name
	def     any
	about   string
	oneOf   []string
	pattern string
	key     string // the key of the ConfigMap fairway-agent, if it has one
	main    bool   // whether deploy/agent/config.yaml has the key
}

func (v *value) name() string { return strings.Join(v.path, ".") }

// groups are the first parts of paths, in the order of values.yaml.
var groups = [][2]string{
	{"image", "The image of all parts: `make image` makes it and says its tag."},
	{"", ""},
	{"settings", "More settings (docs/settings.md), with their defaults."},
	{"components", "Parts of deploy/components, each with what it needs and no more."},
	{"dns", "Cluster DNS: Deployment fairway-dns."},
	{"agent", "DaemonSet fairway-agent: the service proxy, and the pod network."},
	{"controller", "Deployment fairway-controller, if a component brings it."},
	{"gateway", "DaemonSet fairway-gateway, with gateways: true."},
	{"names", "Deployment fairway-names, with the component names."},
	{"speaker", "DaemonSet fairway-speaker, if a component brings it."},
}

// settingNames lists the names in values.yaml that are not their keys in camel case.
var settingNames = map[string]string{"CLUSTER_CIDR": "clusterCIDR", "REFUSE_EXTERNAL_IPS": "refuseExternalIPs",
	"GATEWAY": "gateways"} // gateway has the values of the workload

// groupsOf returns the groups, with those of new workloads.
func groupsOf(values []*value) [][2]string {
	all := slices.Clone(groups)
	for _, v := range values {
		if len(v.path) > 1 && !slices.ContainsFunc(all, func(g [2]string) bool { return g[0] == v.path[0] }) {
			all = append(all, [2]string{v.path[0], "Workload fairway-" + v.path[0] + ", if a component brings it."})
		}
	}
	return all
}

// Name returns the name in values.yaml of a ConfigMap key or a component: apiServer for FAIRWAY_API_SERVER,
// loadBalancer for load-balancer.
func Name(name string) string {
	if known := settingNames[name]; known != "" {
		return known
	}
	words := strings.FieldsFunc(strings.ToLower(strings.TrimPrefix(name, "FAIRWAY_")), func(r rune) bool { return r == '_' || r == '-' })
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// podNetwork is the key with a component that belongs to all its values except none.
const podNetwork = "POD_NETWORK"

// registry returns the settings as values. Those of deploy/agent/config.yaml have no group.
func registry() (out []*value) {
	for _, s := range settings.All {
		v := &value{path: []string{"settings", Name(s.Key)}, key: s.Key, def: s.Default, about: s.Meaning() + ".", main: s.Main}
		if s.Main {
			v.path = v.path[1:]
		}
		switch s.Kind {
		case settings.Bool:
			v.def = s.Default == "true"
		case settings.Number:
			n, _ := strconv.ParseInt(s.Default, 10, 64) // a test of the registry reads it, too
			v.def = n
		case settings.Word:
			v.oneOf = s.Words
		case settings.Duration:
			v.pattern = `^([0-9.]+(ms|s|m|h))+$`
		}
		if s.Key == "FAIRWAY_API_SERVER" { // the placeholder is refused here, not noticed later
			v.def, v.pattern = "", "^(https://.+)?$"
			v.about += " Must be set."
		}
		out = append(out, v)
	}
	return out
}

// line returns the line of a setting in the ConfigMap's data. A setting that is not in deploy/agent/config.yaml has a line
// only if it differs from the default.
func (v *value) line() string {
	text := ".Values." + v.name()
	if n, ok := v.def.(int64); ok { // Helm reads numbers as floats
		text = "int64 " + text
		return fmt.Sprintf("{{- if ne (%s) (int64 %d) }}\n%s: {{ %s | quote }}\n{{- end }}\n", text, n, v.key, text)
	}
	if v.main {
		return fmt.Sprintf("%s: {{ %s | quote }}\n", v.key, text)
	}
	def, _ := json.Marshal(v.def)
	return fmt.Sprintf("{{- if ne %s %s }}\n%s: {{ %s | quote }}\n{{- end }}\n", text, def, v.key, text)
}

// valuesFile returns values.yaml.
func valuesFile(values []*value) []byte {
	var out bytes.Buffer
	out.WriteString(generated)
	for _, g := range groupsOf(values) {
		indent, began := "", g[0] == ""
		for _, v := range values {
			if !v.in(g[0]) {
				continue
			}
			if !began {
				out.WriteString("\n# " + g[1] + "\n" + g[0] + ":\n")
				indent, began = "  ", true
			}
			if g[0] == "" {
				out.WriteString("\n")
			}
			comment(&out, indent, v.comment())
			text, _ := yaml.Marshal(nested(v.path[min(1, len(g[0])):], v.def))
			for line := range strings.Lines(string(text)) {
				out.WriteString(indent + line)
			}
		}
	}
	return out.Bytes()
}

// in reports whether the value belongs to a group. Values with one name belong to the group "".
func (v *value) in(group string) bool {
	return len(v.path) == 1 && group == "" || len(v.path) > 1 && v.path[0] == group
}

func (v *value) comment() string {
	if len(v.oneOf) == 0 {
		return v.about
	}
	return v.about + " One of: " + strings.Join(v.oneOf, ", ") + "."
}

func comment(out *bytes.Buffer, indent, text string) {
	line := indent + "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 100 {
			out.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	out.WriteString(line + "\n")
}

// nested returns a map of maps for a path.
func nested(path []string, v any) any {
	for _, name := range slices.Backward(path) {
		v = map[string]any{name: v}
	}
	return v
}

// schema returns values.schema.json: an unknown name or another type is refused.
func schema(values []*value) []byte {
	root := object()
	root["$schema"] = "https://json-schema.org/draft-07/schema#"
	root["title"] = "Values of the chart fairway"
	root["properties"].(map[string]any)["global"] = map[string]any{"type": "object", "description": "Helm's, where this chart is a part of another one"}
	for _, v := range values {
		at := root["properties"].(map[string]any)
		for _, name := range v.path[:len(v.path)-1] {
			if at[name] == nil {
				at[name] = object()
			}
			at = at[name].(map[string]any)["properties"].(map[string]any)
		}
		at[v.path[len(v.path)-1]] = v.property()
	}
	text, _ := json.MarshalIndent(root, "", "  ") // maps, lists and texts only, so it cannot fail
	return append(text, '\n')
}

func object() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": false, "properties": map[string]any{}}
}

func (v *value) property() map[string]any {
	p := map[string]any{"description": v.about, "default": v.def}
	switch v.def.(type) {
	case bool:
		p["type"] = "boolean"
	case string:
		p["type"] = "string"
	case int64:
		p["type"], p["minimum"] = "integer", 0
	case []any:
		p["type"] = "array"
	default:
		p["type"] = "object"
	}
	if v.oneOf != nil {
		p["enum"] = v.oneOf
	}
	if v.pattern != "" {
		p["pattern"] = v.pattern
	}
	return p
}

// table returns the values as a Markdown table.
func table(values []*value) string {
	var out strings.Builder
	out.WriteString("| value | default | meaning |\n|---|---|---|\n")
	for _, g := range groupsOf(values) {
		for _, v := range values {
			if !v.in(g[0]) {
				continue
			}
			def, _ := json.Marshal(v.def)
			fmt.Fprintf(&out, "| `%s` | `%s` | %s |\n", v.name(), def, strings.ReplaceAll(v.comment(), "|", `\|`))
		}
	}
	return out.String()
}
