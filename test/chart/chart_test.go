package chart

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/deploy"
	ours "github.com/fairway-net/fairway/hack/chart"
	"github.com/fairway-net/fairway/internal/operate/install"
	"github.com/fairway-net/fairway/internal/operate/settings"
)

const (
	server = "https://192.0.2.1:6443"
	image  = "registry.example/fairway:v1"
)

// load reads the archive as `helm install` does.
func load(t *testing.T) *chart.Chart {
	t.Helper()
	files, err := ours.Chart{Manifests: deploy.Files, Version: "v1.2.3-test", Image: image}.Files()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := ours.Archive(files)
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.LoadArchive(strings.NewReader(string(archive)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return c
}

// render is `helm template`: the objects, and the notes.
func render(c *chart.Chart, text string) ([]*unstructured.Unstructured, string, error) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		return nil, "", err
	}
	options := chartutil.ReleaseOptions{Name: "fairway", Namespace: "kube-system", IsInstall: true, Revision: 1}
	top, err := chartutil.ToRenderValues(c, values, options, nil)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Render(c, top)
	if err != nil {
		return nil, "", err
	}
	var all []*unstructured.Unstructured
	notes := ""
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case strings.HasSuffix(name, "NOTES.txt"):
			notes = files[name]
			continue
		case !strings.HasSuffix(name, ".yaml"):
			continue
		}
		for docs := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(files[name]), 4096); ; {
			u := &unstructured.Unstructured{}
			err := docs.Decode(&u.Object)
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, "", fmt.Errorf("%s: %w\n%s", name, err, files[name])
			}
			if len(u.Object) > 0 {
				all = append(all, u)
			}
		}
	}
	return all, notes, nil
}

// normal is an object by its name, without what Helm alone looks at, and without the order
// of what Kubernetes has no order for.
func normal(t *testing.T, all []*unstructured.Unstructured) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, o := range all {
		text, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		var plain map[string]any
		if err := json.Unmarshal(text, &plain); err != nil {
			t.Fatal(err)
		}
		u := unstructured.Unstructured{Object: plain}
		if a := u.GetAnnotations(); a["helm.sh/resource-policy"] != "" {
			delete(a, "helm.sh/resource-policy")
			u.SetAnnotations(a)
			if len(a) == 0 {
				unstructured.RemoveNestedField(plain, "metadata", "annotations")
			}
		}
		unordered(plain)
		name := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
		if out[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		out[name] = plain
	}
	return out
}

// unordered sorts volumes, their mounts, capabilities, and variables, whose values refer to none
// of each other.
func unordered(v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			unordered(inner)
			if list, ok := inner.([]any); ok && slices.Contains([]string{"volumes", "volumeMounts", "add", "env"}, key) {
				slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
				if key == "add" { // a set; two components that add the same one have it twice with kustomize
					v[key] = slices.CompactFunc(list, reflect.DeepEqual)
				}
			}
		}
	case []any:
		for _, inner := range v {
			unordered(inner)
		}
	}
}

// A choice is a value of the chart, and what it is for `fairway install`.
type choice struct {
	value     string // YAML
	component string
	sets      map[string]string
	dns       bool
	service   []string
}

// choices are all values that decide which objects there are: each component, each value that a
// component follows from, and DNS.
func choices(t *testing.T) []choice {
	t.Helper()
	components, err := install.Components(deploy.Files)
	if err != nil {
		t.Fatal(err)
	}
	all := []choice{
		{value: "dns: {enabled: true}", dns: true},
		{value: "dns: {service: {clusterIPs: [10.96.0.10]}}", service: []string{"10.96.0.10"}},
		{value: "dns: {service: {clusterIPs: [10.96.0.10, 'fd00::a']}}", service: []string{"10.96.0.10", "fd00::a"}},
		{value: "refuseExternalIPs: false", sets: map[string]string{"REFUSE_EXTERNAL_IPS": "false"}},
		{value: "clusterCIDR: 10.1.0.0/16,fd01::/48", sets: map[string]string{"CLUSTER_CIDR": "10.1.0.0/16,fd01::/48"}},
		{value: "podNetwork: auto", sets: map[string]string{"POD_NETWORK": "auto"}},
		{value: "proxyMode: none", sets: map[string]string{"PROXY_MODE": "none"}},
	}
	for _, c := range components {
		one := choice{component: c.Name}
		if len(c.Sets) > 0 {
			one = choice{sets: c.Sets}
			var parts []string
			for key, value := range c.Sets {
				parts = append(parts, ours.Name(key)+": "+value)
			}
			one.value = strings.Join(parts, "\n")
		} else {
			one.value = "components: {" + ours.Name(c.Name) + ": true}"
		}
		all = append(all, one)
	}
	return all
}

// both renders one combination in both ways.
func both(t *testing.T, c *chart.Chart, chosen []choice) {
	t.Helper()
	values := map[string]any{"apiServer": server, "dns": map[string]any{"enabled": false}}
	s := install.Settings{Image: image}
	s.Values = settings.Defaults()
	s.Values["FAIRWAY_API_SERVER"] = server
	var o install.Options
	var said []string
	for _, one := range chosen {
		var more map[string]any
		if err := yaml.Unmarshal([]byte(one.value), &more); err != nil {
			t.Fatal(err)
		}
		values = chartutil.CoalesceTables(more, values)
		maps.Copy(s.Values, one.sets)
		s.DNS = s.DNS || one.dns
		if one.service != nil {
			s.DNSService = one.service
		}
		if one.component != "" {
			o.Components = append(o.Components, one.component)
		}
		said = append(said, one.value)
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	have, _, err := render(c, string(text))
	if err := s.WithComponents(deploy.Files, o); err != nil {
		t.Fatal(err)
	}
	want, refused := install.Render(deploy.Files, s)
	if err != nil && strings.Contains(err.Error(), "no proxy would be left") && s.Values["PROXY_MODE"] == "none" && s.Values["REPLACE_KUBE_PROXY"] == "true" {
		return // fairway install refuses it before it renders anything
	}
	if err != nil && refused == nil && strings.Contains(err.Error(), "gateways: without a controller") && s.Values["GATEWAY"] == "true" {
		for name := range normal(t, want) {
			if strings.Contains(name, "Deployment") && strings.HasSuffix(name, "fairway-controller") {
				t.Errorf("%q: the chart refuses gateways, and there is a controller", said)
			}
		}
		return // fairway install refuses it before it renders anything
	}
	if (err != nil) != (refused != nil) {
		t.Fatalf("%q: the chart says %v, fairway install %v", said, err, refused)
	}
	if err != nil {
		if !strings.Contains(err.Error(), "exclude each other") {
			t.Fatalf("%q: %v", said, err)
		}
		return
	}
	compare(t, fmt.Sprintf("%q", said), normal(t, have), normal(t, want))
}

func compare(t *testing.T, what string, have, want map[string]any) {
	t.Helper()
	if len(want) < 5 {
		t.Fatalf("%s: only %d objects", what, len(want))
	}
	for name := range want {
		if !reflect.DeepEqual(have[name], want[name]) {
			a, _ := yaml.Marshal(have[name])
			b, _ := yaml.Marshal(want[name])
			t.Errorf("%s: %s is in the chart\n%s\nby fairway install\n%s", what, name, a, b)
		}
	}
	for name := range have {
		if want[name] == nil {
			t.Errorf("%s: %s is in the chart alone", what, name)
		}
	}
}

// TestSameAsInstall: alone, components in all pairs, and many at once.
func TestSameAsInstall(t *testing.T) {
	c := load(t)
	all := choices(t)
	both(t, c, nil)
	for i, one := range all {
		both(t, c, []choice{one})
		for _, other := range all[i+1:] {
			if one.component == "" && one.sets == nil || reflect.DeepEqual(slices.Collect(maps.Keys(one.sets)), slices.Collect(maps.Keys(other.sets))) && one.sets != nil {
				continue // DNS alone; two values of one setting
			}
			both(t, c, []choice{one, other})
		}
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		var some []choice
		for _, one := range all {
			if random.IntN(3) > 0 {
				some = append(some, one)
			}
		}
		both(t, c, some)
	}
}

// TestEverySetting: each setting is a value of the chart.
func TestEverySetting(t *testing.T) {
	c := load(t)
	example := map[settings.Kind]string{
		settings.Text: "x", settings.Number: "7", settings.Duration: "9m", settings.CIDRs: "192.0.2.0/24,2001:db8::/64", settings.Address: "node:9",
	}
	for _, s := range settings.All {
		if s.Main {
			continue // a choice
		}
		values := s.Allowed()
		if value := example[s.Kind]; value != "" {
			values = append(values, value)
		}
		for _, value := range values {
			if value != s.Default {
				text, _ := yaml.Marshal(value)
				if s.Kind == settings.Bool || s.Kind == settings.Number {
					text = []byte(value)
				}
				both(t, c, []choice{{value: "settings:\n  " + ours.Name(s.Key) + ": " + string(text), sets: map[string]string{s.Key: value}}})
			}
		}
	}
}

// TestCleanup: with cleanup there is nothing but what removes it.
func TestCleanup(t *testing.T) {
	have, notes, err := render(load(t), "cleanup: true\ncomponents: {loadBalancer: true}")
	if err != nil {
		t.Fatal(err)
	}
	want, err := install.RenderCleanup(deploy.Files, image, false)
	if err != nil || len(want) != 1 {
		t.Fatalf("%d objects, %v", len(want), err)
	}
	for name, o := range normal(t, want) {
		if !reflect.DeepEqual(normal(t, have)[name], o) || len(have) != len(want) {
			t.Errorf("the chart has %d objects; %s differs", len(have), name)
		}
	}
	if !strings.Contains(notes, "helm uninstall fairway --namespace kube-system") {
		t.Errorf("the notes say\n%s", notes)
	}
}

// TestRefused: a chart that could not work says what to do, before anything is applied.
func TestRefused(t *testing.T) {
	c := load(t)
	c.Values["image"].(map[string]any)["tag"] = ""
	for values, want := range map[string]string{
		"{}":                   "apiServer is not set: give the URL",
		"apiServer: 192.0.2.1": "does not match pattern",
		"apiServer: " + server: "image.tag is not set",
		"apiServer: " + server + "\nimage: {tag: v1}\nproxyMode: nftable":                                                     "value must be one of",
		"apiServer: " + server + "\nimage: {tag: v1}\nproxymode: iptables":                                                    "additional properties 'proxymode' not allowed",
		"apiServer: " + server + "\nimage: {tag: v1}\nagent: {resource: {}}":                                                  "additional properties 'resource' not allowed",
		"apiServer: " + server + "\nimage: {tag: v1}\nreplaceKubeProxy: 'true'":                                               "got string, want boolean",
		"apiServer: " + server + "\nimage: {tag: v1}\nreplaceKubeProxy: true\nproxyMode: none":                                "no proxy would be left",
		"apiServer: " + server + "\nimage: {tag: v1}\ncomponents: {servicelb: true, loadBalancer: true}":                      "exclude each other: both contain controller",
		"apiServer: " + server + "\nimage: {tag: v1}\ngateways: true":                                                         "gateways: without a controller no Gateway gets a Service",
		"apiServer: " + server + "\nimage: {digest: 'sha256:1'}":                                                              "does not match pattern",
		"apiServer: " + server + "\nimage: {tag: v1, pullPolicy: Sometimes}\nglobal: {from: an umbrella chart is no mistake}": "value must be one of",
	} {
		if _, _, err := render(c, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", values, err, want)
		}
	}
}

// TestOverrides: what operators change is changed, and nothing else is.
func TestOverrides(t *testing.T) {
	c := load(t)
	before, _, err := render(c, "apiServer: "+server)
	if err != nil {
		t.Fatal(err)
	}
	after, notes, err := render(c, `
apiServer: `+server+`
replaceKubeProxy: true
image: {repository: registry.example/mine, digest: "sha256:`+strings.Repeat("0a", 32)+`", pullSecrets: [{name: key}]}
agent:
  resources: {limits: {memory: 1Gi}}
  goMemLimit: 800MiB
  tolerations: []
  nodeSelector: {role: worker}
dns: {replicas: 3}
`)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(normal(t, after))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"image: registry.example/mine@sha256:0a0a", "- name: key", "memory: 1Gi", "cpu: 50m", "value: 800MiB", "tolerations: []",
		"role: worker", "kubernetes.io/os: linux", "replicas: 3", `REPLACE_KUBE_PROXY: "true"`, "/run/xtables.lock",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if len(before) != len(after) || !strings.Contains(notes, "fairway.net/kube-proxy") || !strings.Contains(notes, "mode nftables") {
		t.Errorf("%d objects, were %d; the notes say\n%s", len(after), len(before), notes)
	}
}
