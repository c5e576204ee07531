package chart

import (
	_ "embed" // the files that are not generated from deploy/
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/operate/install"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

//go:embed files/NOTES.txt
var notes []byte

// generated is the first line of each generated file.
const generated = "# Generated from deploy/ by `make chart`: change it there.\n"

// A Chart is the input of a chart.
type Chart struct {
	Manifests fs.FS  // the directory deploy
	Version   string // of the program, as v1.2.3
	Image     string // the default image, name:tag; empty if this build has none
	Readme    string // docs/helm.md; the table of values is appended
}

// Files returns the files of the chart by their path in it.
func (c Chart) Files() (map[string][]byte, error) {
	m := &maker{manifests: c.Manifests}
	if err := m.read(c.Image); err != nil {
		return nil, err
	}
	files, err := m.templates()
	if err != nil {
		return nil, err
	}
	meta, err := yaml.Marshal(map[string]any{
		"apiVersion": "v2", "name": "fairway", "type": "application", "version": strings.TrimPrefix(c.Version, "v"), "appVersion": c.Version,
		"description": "A Kubernetes service network in one program: service proxy, cluster DNS, pod network, load balancer, NetworkPolicy",
		"kubeVersion": ">=1.27.0-0", // the first version with all fields of the Deployments
		"home":        "https://github.com/fairway-net/fairway",
		"keywords":    []string{"kube-proxy", "service", "dns", "cni", "load-balancer", "networkpolicy"},
	})
	if err != nil {
		return nil, fmt.Errorf("encode Chart.yaml: %w", err)
	}
	maps.Copy(files, map[string][]byte{
		"Chart.yaml": meta, "values.yaml": valuesFile(m.values), "values.schema.json": schema(m.values),
		"templates/_helpers.tpl": m.helpers(), "templates/validate.yaml": []byte("{{- include \"fairway.validate\" . }}\n"),
		"templates/NOTES.txt": notes, "README.md": []byte(c.readme(m.values)),
	})
	return files, nil
}

func (c Chart) readme(values []*value) string {
	text := strings.ReplaceAll(c.Readme, "](../", "](https://github.com/fairway-net/fairway/tree/main/")
	return text + "\n## Values\n\n" + table(values)
}

// A maker makes one chart.
type maker struct {
	manifests  fs.FS
	components []install.Component
	values     []*value
	settings   []*value // values that are keys of the ConfigMap
	objects    []rendered
}

// A rendered object exists under some conditions.
type rendered struct {
	ref      string
	file     string
	versions []version
}

// read renders deploy/ in all versions.
func (m *maker) read(image string) (err error) {
	if m.components, err = install.Components(m.manifests); err != nil {
		return err
	}
	m.settings = registry()
	m.values = append(imageValues(image), m.settings...)
	for _, c := range m.components {
		if len(c.Sets) == 0 {
			m.values = append(m.values, &value{path: []string{"components", Name(c.Name)}, def: false, about: c.About})
		}
	}
	m.values = append(m.values,
		&value{path: []string{"dns", "enabled"}, def: true, about: "Run cluster DNS. The Service kube-dns is the cluster's."},
		&value{path: []string{"dns", "service", "clusterIPs"}, def: []any{}, about: "Addresses of a Service kube-dns, for a cluster that has none: what kubelets have as clusterDNS."},
		&value{path: []string{"cleanup"}, def: false, about: "Before `helm uninstall`: instead of all else, remove every node's rules, routes and files."})
	base := settings.Defaults()
	if err := m.render("", install.Settings{Values: base}); err != nil {
		return err
	}
	if err := m.render(".Values.dns.enabled", install.Settings{Values: base, DNS: true}); err != nil {
		return err
	}
	if err := m.render(".Values.dns.service.clusterIPs", install.Settings{Values: base, DNSService: []string{"192.0.2.10"}}); err != nil {
		return err
	}
	for _, c := range m.components {
		values := maps.Clone(base)
		maps.Copy(values, c.Sets)
		if err := m.render(m.condition(c), install.Settings{Values: values, Components: []string{c.Name}}); err != nil {
			return fmt.Errorf("component %s: %w", c.Name, err)
		}
	}
	return nil
}

func imageValues(image string) []*value {
	name, tag := "ghcr.io/fairway-net/fairway", ""
	if at := strings.LastIndex(image, ":"); at > strings.LastIndex(image, "/") {
		name, tag = image[:at], image[at+1:]
	}
	return []*value{
		{path: []string{"image", "repository"}, def: name, about: "Registry and name."},
		{path: []string{"image", "tag"}, def: tag, about: "It must name one image for ever: nodes keep what they have under a tag that moves."},
		{path: []string{"image", "digest"}, def: "", about: "Counts in place of the tag.", pattern: "^(sha256:[0-9a-f]{64})?$"},
		{path: []string{"image", "pullPolicy"}, def: "IfNotPresent", about: "When kubelets pull it.", oneOf: []string{"IfNotPresent", "Always", "Never"}},
		{path: []string{"image", "pullSecrets"}, def: []any{}, about: "Secrets for the registry, as [{name: NAME}]."},
	}
}

// condition returns the condition under which a component is rendered.
func (m *maker) condition(c install.Component) string {
	if len(c.Sets) == 0 {
		return ".Values.components." + Name(c.Name)
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(c.Sets)) {
		v := m.settings[slices.IndexFunc(m.settings, func(v *value) bool { return v.key == key })]
		switch {
		case v.def == true || v.def == false:
			all = append(all, ".Values."+v.name())
		case key == podNetwork && c.Sets[key] == "routes": // the component belongs to all ways of the pod network
			all = append(all, fmt.Sprintf("ne .Values.%s %q", v.name(), "none"))
		default:
			all = append(all, fmt.Sprintf("eq .Values.%s %q", v.name(), c.Sets[key]))
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return "and " + inBrackets(all)
}

// render adds the objects of one version.
func (m *maker) render(when string, s install.Settings) error {
	s.Image = placeholder
	s.Values = maps.Clone(s.Values)
	objects, err := install.Render(m.manifests, s)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := m.substitute(o); err != nil {
			return err
		}
		m.add(version{when, o.Object}, o)
	}
	return nil
}

func (m *maker) add(v version, o *unstructured.Unstructured) {
	ref := strings.Join([]string{o.GetKind(), o.GetNamespace(), o.GetName()}, "/")
	i := slices.IndexFunc(m.objects, func(r rendered) bool { return r.ref == ref })
	if i < 0 {
		file := o.GetLabels()["app.kubernetes.io/name"]
		if o.GetKind() == "CustomResourceDefinition" {
			file = "crds"
		}
		m.objects = append(m.objects, rendered{ref: ref, file: file})
		i = len(m.objects) - 1
	}
	m.objects[i].versions = append(m.objects[i].versions, v)
}

// templates returns a file of objects for each program.
func (m *maker) templates() (map[string][]byte, error) {
	files := map[string][]*node{}
	for _, r := range m.objects {
		n, err := merge(r.versions)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.ref, err)
		}
		if r.versions[0].when != "" { // the object depends on a condition
			for _, v := range r.versions {
				n.when = append(n.when, v.when)
			}
		}
		files[r.file] = append(files[r.file], n)
	}
	out := map[string][]byte{}
	for name, nodes := range files {
		out["templates/"+name+".yaml"] = new(printer).objects(nodes, "not .Values.cleanup")
	}
	objects, err := install.RenderCleanup(m.manifests, placeholder, false)
	if err != nil {
		return nil, err
	}
	var cleanup []*node
	for _, o := range objects {
		if err := m.substitute(o); err != nil {
			return nil, err
		}
		n, err := merge([]version{{"", o.Object}})
		if err != nil {
			return nil, err
		}
		cleanup = append(cleanup, n)
	}
	out["templates/fairway-cleanup.yaml"] = new(printer).objects(cleanup, ".Values.cleanup")
	return out, nil
}
