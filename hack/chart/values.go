package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/operate/install"
)

// A value is a setting of the chart.
type value struct {
	path    []string // in values.yaml: a group and a name, or one name
	def     any
	about   string
	oneOf   []string
	pattern string
	key     string // the key of the ConfigMap fairway-agent, if it has one
}

func (v *value) name() string { return strings.Join(v.path, ".") }

// groups are the first parts of paths, in the order of values.yaml.
var groups = [][2]string{
	{"image", "The image of all parts: `make image` makes it and says its tag."},
	{"", ""},
	{"components", "Parts of deploy/components, each with what it needs and no more."},
	{"dns", "Cluster DNS: Deployment fairway-dns."},
	{"agent", "DaemonSet fairway-agent: the service proxy, and the pod network."},
	{"controller", "Deployment fairway-controller, if a component brings it."},
	{"speaker", "DaemonSet fairway-speaker, if a component brings it."},
}

// settingNames lists the names in values.yaml that are not their keys in camel case.
var settingNames = map[string]string{"CLUSTER_CIDR": "clusterCIDR", "REFUSE_EXTERNAL_IPS": "refuseExternalIPs"}

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

// ofComponent matches sentences about components. The values express them here.
var ofComponent = regexp.MustCompile(` [^.]*[Cc]omponent[^.]*\.`)

// settings returns the keys of the ConfigMap with their comments in deploy/agent/config.yaml.
func settings(manifests fs.FS, components []install.Component) ([]*value, error) {
	defaults, err := install.Defaults(manifests)
	if err != nil {
		return nil, err
	}
	text, err := fs.ReadFile(manifests, "agent/config.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the manifests in this program: %w", err)
	}
	var out []*value
	var comment []string
	_, data, _ := strings.Cut(string(text), "\ndata:\n")
	for line := range strings.Lines(data) {
		line = strings.TrimSpace(line)
		if c, ok := strings.CutPrefix(line, "#"); ok {
			comment = append(comment, strings.TrimSpace(c))
			continue
		}
		key, _, _ := strings.Cut(line, ":")
		def, ok := defaults[key]
		if !ok {
			continue
		}
		about := ofComponent.ReplaceAllString(strings.Join(comment, " "), "")
		v := &value{path: []string{Name(key)}, key: key, def: def, about: about, oneOf: choices(key, def, components)}
		if def == "true" || def == "false" {
			v.def, v.oneOf, v.about = def == "true", nil, strings.ReplaceAll(about, `"`, "")
		}
		if key == "FAIRWAY_API_SERVER" { // the placeholder is refused here, not noticed later
			v.def, v.pattern = "", "^(https://.+)?$"
			v.about, _, _ = strings.Cut(about, " The value below")
			v.about = strings.TrimSuffix(v.about, ".") + ". Must be set."
		}
		out, comment = append(out, v), nil
	}
	if len(out) != len(defaults) {
		return nil, fmt.Errorf("found %d of the %d settings in agent/config.yaml", len(out), len(defaults))
	}
	return out, nil
}

// oneOfKeys lists the allowed values of keys without components.
var oneOfKeys = map[string][]string{"LOG_FORMAT": {"text", "json"}}

// podNetwork is the key with a component that belongs to all its values except none.
const podNetwork = "POD_NETWORK"

// choices returns the allowed values of a setting that selects components.
func choices(key, def string, components []install.Component) []string {
	if known := oneOfKeys[key]; known != nil {
		return known
	}
	oneOf := []string{def}
	for _, c := range components {
		if v, ok := c.Sets[key]; ok && !slices.Contains(oneOf, v) {
			oneOf = append(oneOf, v)
		}
	}
	if key == podNetwork {
		oneOf = append(oneOf, "vxlan", "auto", "bgp") // they use the same component
	}
	if len(oneOf) == 1 {
		return nil
	}
	if !slices.Contains(oneOf, "none") {
		oneOf = append(oneOf, "none") // it selects no component
	}
	return oneOf
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
