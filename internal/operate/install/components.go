package install

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/kube/objects"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

// A Component is one of deploy/components.
type Component struct {
	Name     string
	About    string            // the first paragraph of the comment in its kustomization.yaml
	Contains []string          // components that it includes
	Sets     map[string]string // keys of the ConfigMap fairway-agent; the component is applied exactly while they have these values

	own []objects.Ref // the objects of its own files
}

// Components reads the directory components, sorted by name.
func Components(manifests fs.FS) ([]Component, error) {
	entries, err := fs.ReadDir(manifests, "components")
	if err != nil {
		return nil, fmt.Errorf("read the manifests in this program: %w", err)
	}
	all := make([]Component, len(entries))
	for i, e := range entries {
		if all[i], err = readComponent(manifests, e.Name()); err != nil {
			return nil, fmt.Errorf("read component %s: %w", e.Name(), err)
		}
	}
	return all, nil
}

func readComponent(manifests fs.FS, name string) (Component, error) {
	c := Component{Name: name}
	text, err := fs.ReadFile(manifests, path.Join("components", name, "kustomization.yaml"))
	if err != nil {
		return c, err
	}
	c.About = firstParagraph(string(text))
	var k kustomization
	if err := yaml.Unmarshal(text, &k); err != nil {
		return c, err
	}
	for _, p := range k.Components {
		if name := path.Base(p); name != "image" { // component image may come twice and needs no setting
			c.Contains = append(c.Contains, name)
		}
	}
	for _, file := range k.Resources {
		refs, err := refsIn(manifests, path.Join("components", name, file))
		if err != nil {
			return c, err
		}
		c.own = append(c.own, refs...)
	}
	for _, p := range k.Patches {
		var change struct {
			Kind     string            `json:"kind"`
			Metadata map[string]any    `json:"metadata"`
			Data     map[string]string `json:"data"`
		}
		if p.Patch == "" || strings.HasPrefix(p.Patch, "-") { // a file, or a JSON patch of a workload
			continue
		}
		if err := yaml.Unmarshal([]byte(p.Patch), &change); err != nil {
			return c, err
		}
		if change.Kind == "ConfigMap" && change.Metadata["name"] == agentName {
			c.Sets = change.Data
		}
	}
	return c, nil
}

// refsIn names the objects of a file.
func refsIn(manifests fs.FS, file string) (refs []objects.Ref, err error) {
	text, err := fs.ReadFile(manifests, file)
	if err != nil {
		return nil, err
	}
	for doc := range strings.SplitSeq(string(text), "\n---") {
		var o struct {
			objects.Ref `json:",inline"`
			Metadata    struct{ Name, Namespace string } `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		if o.Kind != "" {
			refs = append(refs, objects.Ref{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name})
		}
	}
	return refs, nil
}

// liveComponents returns the components whose own objects all exist on the cluster. Components of a setting are left
// out, because the setting selects them, and components that another live component includes.
func liveComponents(ctx context.Context, api API, manifests fs.FS) (live []string, err error) {
	known, err := Components(manifests)
	if err != nil {
		return nil, err
	}
	var contained []string
	for _, c := range known {
		there := len(c.own) > 0 && len(c.Sets) == 0
		for i := 0; there && i < len(c.own); i++ {
			o, err := api.Get(ctx, c.own[i])
			if err != nil {
				return nil, err
			}
			there = o != nil
		}
		if there {
			live = append(live, c.Name)
			contained = append(contained, c.Contains...)
		}
	}
	return slices.DeleteFunc(live, func(name string) bool { return slices.Contains(contained, name) }), nil
}

// firstParagraph returns the comment at the start of a file, up to its first empty line.
func firstParagraph(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line, comment := strings.CutPrefix(strings.TrimSpace(line), "#")
		if line = strings.TrimSpace(line); !comment || line == "" {
			break
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, " ")
}

// chosen reports whether these values select the component.
func (c *Component) chosen(values map[string]string) bool {
	for key, value := range c.Sets {
		ofAll := key == keyPodNetwork && value == routes // the component belongs to all ways of the pod network
		if values[key] != value && !(ofAll && connectsPods(values)) {
			return false
		}
	}
	return len(c.Sets) > 0
}

// connectsPods reports whether Fairway provides the pod network.
func connectsPods(values map[string]string) bool {
	return values[keyPodNetwork] != none && values[keyPodNetwork] != ""
}

// WithComponents adds the components that o names and those that the settings select. Naming a component of a setting
// without a flag sets it.
func (s *Settings) WithComponents(manifests fs.FS, o Options) error {
	known, err := Components(manifests)
	if err != nil {
		return err
	}
	base := settings.Defaults()
	named, without := slices.Clone(o.Components), slices.Clone(o.Without)
	for _, name := range slices.Concat(named, without) {
		i := slices.IndexFunc(known, func(c Component) bool { return c.Name == name })
		if i < 0 {
			return fmt.Errorf("no component %q [choose from %s]", name, strings.Join(names(known), ", "))
		}
		for key, value := range known[i].Sets {
			if flag := flagOf[key]; flag != "" {
				return fmt.Errorf("component %q follows from the settings [use %s %s]", name, flag, value)
			}
			if slices.Contains(without, name) {
				value = base[key]
			}
			s.Values[key] = value
		}
	}
	all := slices.Concat(s.Components, named)
	for _, c := range known {
		if len(c.Sets) > 0 || slices.Contains(without, c.Name) {
			all = slices.DeleteFunc(all, func(name string) bool { return name == c.Name })
		}
		if c.chosen(s.Values) {
			all = append(all, c.Name)
		}
	}
	slices.Sort(all)
	s.Components = slices.Compact(all)
	return nil
}

// flagOf maps the keys that components set to flags.
var flagOf = map[string]string{keyMode: "--proxy-mode", keyPodNetwork: "--pod-network", keyReplace: "--replace-kube-proxy", keyExternalIPs: "--refuse-external-ips"}

func names(all []Component) []string {
	out := make([]string, len(all))
	for i, c := range all {
		out[i] = c.Name
	}
	return out
}

// uncontained drops the components that another component in the list includes, because kustomize refuses to add them
// twice. Two components that include the same one exclude each other.
func uncontained(manifests fs.FS, all []string) ([]string, error) {
	within := map[string]string{}
	for _, name := range all {
		c, err := readComponent(manifests, name)
		if err != nil {
			return nil, fmt.Errorf("read component %s: %w", name, err)
		}
		for _, inner := range c.Contains {
			if other := within[inner]; other != "" {
				return nil, fmt.Errorf("components %s and %s exclude each other: both contain %s [choose one]", other, name, inner)
			}
			within[inner] = name
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(c string) bool { return within[c] != "" }), nil
}
