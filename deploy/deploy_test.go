// Package deploy_test reads the manifests as the API server would, strictly, and checks
// that what they say of each other holds.
//
//	kustomization.yaml -> agent/ dns/ -> every document -> its Go type -> cross-checks
//
// A misspelt field would otherwise be dropped without a word by `kubectl apply`. What the
// components make of the base is tested in lab/manifest, which has kustomize.
package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// A kustomization is the part of a kustomization.yaml that we use.
type kustomization struct {
	metav1.TypeMeta `json:",inline"`
	Resources       []string `json:"resources,omitempty"`
	Components      []string `json:"components,omitempty"`
	Images          []struct {
		Name   string `json:"name"`
		NewTag string `json:"newTag"`
	} `json:"images,omitempty"`
	Labels []struct {
		Pairs map[string]string `json:"pairs"`
	} `json:"labels,omitempty"`
	Patches []struct {
		Path  string `json:"path,omitempty"`
		Patch string `json:"patch,omitempty"`
		// Target says which object a patch without a name is for.
		Target map[string]string `json:"target,omitempty"`
	} `json:"patches,omitempty"`
}

// read decodes the document strictly: an unknown or a doubled field is an error.
func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// objects decodes every document of a manifest into its Go type.
func objects(t *testing.T, path string) []runtime.Object {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The API server's own decoder, made strict: field names are case-sensitive.
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for docs := utilyaml.NewDocumentDecoder(f); ; {
		text, err := nextDocument(docs)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		o, _, err := decoder.Decode(text, nil, nil)
		if runtime.IsNotRegisteredError(err) { // CustomResourceDefinitions: TestAddresses of the lab applies them
			u := &unstructured.Unstructured{}
			o, err = u, yaml.UnmarshalStrict(text, &u.Object)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, o)
	}
}

func nextDocument(docs io.Reader) ([]byte, error) {
	buf := make([]byte, 64<<10)
	n, err := docs.Read(buf)
	return bytes.TrimSpace(buf[:n]), err
}

// base is every object that `kubectl apply -k deploy/` makes, and the Service that
// `kubectl apply -k deploy/dns-service` adds.
func base(t *testing.T) []runtime.Object {
	t.Helper()
	var all []runtime.Object
	var walk func(dir string)
	walk = func(dir string) {
		var k kustomization
		read(t, filepath.Join(dir, "kustomization.yaml"), &k)
		for _, r := range k.Resources {
			path := filepath.Join(dir, r)
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				walk(path)
				continue
			}
			all = append(all, objects(t, path)...)
		}
	}
	walk(".")
	if len(all) == 0 {
		t.Fatal("no objects")
	}
	return append(all, objects(t, "dns-service/service.yaml")...)
}

// find returns the only object of type T with the name.
func find[T runtime.Object](t *testing.T, all []runtime.Object, name string) T {
	t.Helper()
	var found []T
	for _, o := range all {
		if typed, ok := o.(T); ok && o.(metav1.Object).GetName() == name {
			found = append(found, typed)
		}
	}
	if len(found) != 1 {
		var zero T
		t.Fatalf("%d objects %T %q, want 1", len(found), zero, name)
	}
	return found[0]
}

func TestEveryManifestIsUsedAndDecodes(t *testing.T) {
	used := make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		var k kustomization
		read(t, path, &k)
		used[path] = true
		for _, r := range k.Resources {
			used[filepath.Join(filepath.Dir(path), r)] = true
		}
		for _, p := range k.Patches {
			if p.Path != "" {
				used[filepath.Join(filepath.Dir(path), p.Path)] = true
				continue
			}
			if !strings.HasPrefix(p.Patch, "-") { // a list is a JSON patch, of capabilities
				checkSetting(t, path, p.Patch)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d manifests: %v", len(files), err)
	}
	more, err := filepath.Glob("components/*/*.yaml")
	if err != nil || len(more) == 0 {
		t.Fatalf("found %d components: %v", len(more), err)
	}
	for _, path := range append(files, more...) {
		if !used[path] {
			t.Errorf("%s is in no kustomization.yaml", path)
		}
		if filepath.Base(path) != "kustomization.yaml" {
			objects(t, path)
		}
	}
}

// checkSetting checks that a patch in a component sets a key that the agent's ConfigMap has.
func checkSetting(t *testing.T, path, patch string) {
	t.Helper()
	var change corev1.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(patch), &change); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	config := find[*corev1.ConfigMap](t, base(t), change.Name)
	for key := range change.Data {
		if _, ok := config.Data[key]; !ok {
			t.Errorf("%s: ConfigMap %s has no key %s", path, change.Name, key)
		}
	}
}

func TestObjectsAreInKubeSystem(t *testing.T) {
	for _, o := range base(t) {
		m := o.(metav1.Object)
		_, role := o.(*rbacv1.ClusterRole)
		_, binding := o.(*rbacv1.ClusterRoleBinding)
		want := "kube-system"
		if role || binding {
			want = ""
		}
		if m.GetNamespace() != want {
			t.Errorf("%T %s: namespace %q, want %q", o, m.GetName(), m.GetNamespace(), want)
		}
		if m.GetLabels()["app.kubernetes.io/name"] == "" {
			t.Errorf("%T %s has no label app.kubernetes.io/name", o, m.GetName())
		}
	}
}

func TestPodsFindWhatTheyName(t *testing.T) {
	all := base(t)
	agent := find[*appsv1.DaemonSet](t, all, "fairway-agent")
	dns := find[*appsv1.Deployment](t, all, "fairway-dns")
	for _, c := range []struct {
		name     string
		selector *metav1.LabelSelector
		pod      corev1.PodTemplateSpec
	}{
		{"fairway-agent", agent.Spec.Selector, agent.Spec.Template},
		{"fairway-dns", dns.Spec.Selector, dns.Spec.Template},
	} {
		if !matches(t, c.selector, c.pod.Labels) {
			t.Errorf("%s: the selector does not match its own pods", c.name)
		}
		if c.pod.Spec.ServiceAccountName != c.name {
			t.Errorf("%s: service account %q", c.name, c.pod.Spec.ServiceAccountName)
		}
		find[*corev1.ServiceAccount](t, all, c.name)
		binding := find[*rbacv1.ClusterRoleBinding](t, all, c.name)
		find[*rbacv1.ClusterRole](t, all, binding.RoleRef.Name)
		want := rbacv1.Subject{Kind: "ServiceAccount", Name: c.name, Namespace: "kube-system"}
		if !slices.Equal(binding.Subjects, []rbacv1.Subject{want}) {
			t.Errorf("%s: the binding is for %v", c.name, binding.Subjects)
		}
		for _, container := range c.pod.Spec.Containers {
			checkContainer(t, all, c.pod.Spec, container)
		}
	}
	budget := find[*policyv1.PodDisruptionBudget](t, all, "fairway-dns")
	if !matches(t, budget.Spec.Selector, dns.Spec.Template.Labels) {
		t.Error("the disruption budget does not match the DNS pods")
	}
}

var reference = regexp.MustCompile(`\$\((\w+)\)`)

// checkContainer checks that the variables, keys, ports and volumes that a container
// names are there.
func checkContainer(t *testing.T, all []runtime.Object, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	env := make(map[string]bool)
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "GO") || e.Name == "HOST_IP" {
			continue // the Go runtime's own; read by internal/operate/settings
		}
		if e.ValueFrom != nil && e.ValueFrom.ConfigMapKeyRef != nil {
			t.Errorf("%s: %s names a key of a ConfigMap: settings come by envFrom, or as files", c.Name, e.Name)
		}
		env[e.Name] = true
	}
	for _, from := range c.EnvFrom {
		find[*corev1.ConfigMap](t, base(t), from.ConfigMapRef.Name)
	}
	if c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		t.Errorf("%s: the reason why it ended is in its log only", c.Name)
	}
	used := make(map[string]bool)
	for _, m := range reference.FindAllStringSubmatch(strings.Join(c.Command, "\n"), -1) {
		used[m[1]] = true
		if !env[m[1]] {
			t.Errorf("%s: $(%s) is not in env", c.Name, m[1])
		}
	}
	for name := range env {
		if !used[name] {
			t.Errorf("%s: no argument uses %s", c.Name, name)
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		if p == nil {
			continue
		}
		named := func(port corev1.ContainerPort) bool { return port.Name == p.HTTPGet.Port.StrVal }
		if !slices.ContainsFunc(c.Ports, named) {
			t.Errorf("%s: a probe asks at port %q, which the container does not name", c.Name, p.HTTPGet.Port.StrVal)
		}
	}
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("%s: no volume %s", c.Name, m.Name)
		}
	}
}

// matches reports whether the selector matches the labels.
func matches(t *testing.T, selector *metav1.LabelSelector, set map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(labels.Set(set))
}

// TestClusterKeepsItsDNSService: what is deleted with deploy/ or deploy/dns has no Service: kube-dns was the cluster's before.
func TestClusterKeepsItsDNSService(t *testing.T) {
	for _, file := range []string{"kustomization.yaml", "agent/kustomization.yaml", "dns/kustomization.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^- .*dns-service`).Match(text) {
			t.Errorf("%s has the Service kube-dns", file)
		}
	}
	for _, file := range []string{"dns/rbac.yaml", "dns/deployment.yaml"} {
		for _, o := range objects(t, file) {
			if _, is := o.(*corev1.Service); is {
				t.Errorf("%s has a Service", file)
			}
		}
	}
}

func TestServiceReachesTheDNSPods(t *testing.T) {
	all := base(t)
	pod := find[*appsv1.Deployment](t, all, "fairway-dns").Spec.Template
	svc := find[*corev1.Service](t, all, "kube-dns")
	if !labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(pod.Labels)) {
		t.Errorf("selector %v does not match pods %v", svc.Spec.Selector, pod.Labels)
	}
	for _, p := range svc.Spec.Ports {
		same := func(c corev1.ContainerPort) bool {
			return c.ContainerPort == p.TargetPort.IntVal && c.Protocol == p.Protocol
		}
		if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, same) {
			t.Errorf("port %s: no container port %v/%s", p.Name, p.TargetPort.IntVal, p.Protocol)
		}
	}
}

// The DNS server is reachable by every client in the cluster: it gets nothing that it
// can do without.
func TestDNSHasNoPrivileges(t *testing.T) {
	pod := find[*appsv1.Deployment](t, base(t), "fairway-dns").Spec.Template.Spec
	c := pod.Containers[0].SecurityContext
	switch {
	case pod.HostNetwork, pod.HostPID, pod.HostIPC:
		t.Error("it is in a namespace of the host")
	case !*pod.SecurityContext.RunAsNonRoot, *c.AllowPrivilegeEscalation, !*c.ReadOnlyRootFilesystem, len(c.Capabilities.Add) > 0:
		t.Error("it has more than it needs")
	case !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}):
		t.Errorf("it drops only %v", c.Capabilities.Drop)
	}
}

// TestSpeakersTakeTurns: a rollout ends the next speaker when the one before it says that it is ready, and routers had time
// to write what it told them. /readyz says yes after 30 s, sooner than the kubelet gives up.
func TestSpeakersTakeTurns(t *testing.T) {
	set := find[*appsv1.DaemonSet](t, objects(t, "components/load-balancer/speaker.yaml"), "fairway-speaker")
	if most := set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; most.IntVal != 1 || set.Spec.MinReadySeconds < 2 {
		t.Errorf("%v at once, after %d s", most, set.Spec.MinReadySeconds)
	}
	p := set.Spec.Template.Spec.Containers[0].StartupProbe
	if p == nil || p.HTTPGet.Path != "/readyz" || p.HTTPGet.Host != "127.0.0.1" || p.PeriodSeconds != 1 || p.FailureThreshold < 60 {
		t.Errorf("the startup probe is %v", p)
	}
}
