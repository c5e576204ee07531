package install

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// product is the image's name in deploy/.
const product = "ghcr.io/fairway-net/fairway"

// A kustomization is the part of a kustomization.yaml that this package writes. It is written as JSON, which is YAML.
type kustomization struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Resources  []string  `json:"resources,omitempty"`
	Components []string  `json:"components,omitempty"`
	Images     []any     `json:"images,omitempty"`
	Labels     []any     `json:"labels,omitempty"`
	Patches    []patched `json:"patches,omitempty"`
}

type patched struct {
	Target map[string]string `json:"target"`
	Patch  string            `json:"patch"`
}

// overlay returns the kustomization that a user would write for s (deploy/README.md).
func (s Settings) overlay() (kustomization, error) {
	k := kustomization{APIVersion: "kustomize.config.k8s.io/v1beta1", Kind: "Kustomization", Resources: []string{"deploy/agent"}, Labels: partOf}
	if s.DNS {
		k.Resources = append(k.Resources, "deploy/dns")
	}
	if len(s.DNSService) > 0 {
		k.Resources = append(k.Resources, "deploy/dns-service")
		family := "SingleStack"
		if len(s.DNSService) > 1 {
			family = "RequireDualStack"
		}
		spec := map[string]any{"ipFamilyPolicy": family, "clusterIP": s.DNSService[0], "clusterIPs": s.DNSService}
		if err := k.patch("v1", "Service", "kube-dns", "spec", spec); err != nil {
			return k, err
		}
	}
	for _, c := range s.Components {
		k.Components = append(k.Components, "deploy/components/"+c)
	}
	k.Components = append(k.Components, "deploy/image") // for the images of the components too
	return k, k.patch("v1", "ConfigMap", agentName, "data", s.Values)
}

// partOf labels every object.
var partOf = []any{map[string]any{"pairs": map[string]string{"app.kubernetes.io/part-of": fairway}}}

// patch adds a patch of one field of an object.
func (k *kustomization) patch(apiVersion, kind, name, field string, value any) error {
	text, err := json.Marshal(map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]string{"name": name}, field: value,
	})
	if err != nil {
		return fmt.Errorf("encode a patch of %s: %w", kind, err)
	}
	k.Patches = append(k.Patches, patched{map[string]string{"kind": kind, "name": name}, string(text)})
	return nil
}

// imageComponent returns deploy/image/kustomization.yaml for an image.
func imageComponent(image string) kustomization {
	set := map[string]string{"name": product}
	name, digest, ok := strings.Cut(image, "@")
	if ok {
		set["digest"] = digest
	} else if at := strings.LastIndex(image, ":"); at > strings.LastIndex(image, "/") {
		name, set["newTag"] = image[:at], image[at+1:]
	}
	if name != product {
		set["newName"] = name
	}
	return kustomization{APIVersion: "kustomize.config.k8s.io/v1alpha1", Kind: "Component", Images: []any{set}}
}

// checkImage refuses a text that names no single image.
func checkImage(image string) error {
	last := image[strings.LastIndex(image, "/")+1:]
	switch {
	case image == "":
		return fmt.Errorf("which image? This build has none of its own [give --image NAME:TAG; `make image` writes the name to bin/fairway-image.yaml]")
	case !strings.ContainsAny(last, ":@"):
		return fmt.Errorf("--image %s has no tag [give NAME:TAG or NAME@sha256:…: nodes would keep what they have under a moving tag]", image)
	}
	return nil
}

// Render returns the objects of the settings, in the order of their application. The chart is made from it
// (hack/chart).
func Render(manifests fs.FS, s Settings) ([]*unstructured.Unstructured, error) {
	var err error
	if s.Components, err = uncontained(manifests, s.Components); err != nil {
		return nil, err
	}
	k, err := s.overlay()
	if err != nil {
		return nil, err
	}
	all, err := build(manifests, s.Image, k)
	if err != nil {
		return nil, err
	}
	return all, stamp(all)
}

// RenderCleanup returns the objects that clean every node. With afterKubeProxy each node waits for kube-proxy's rules
// first.
func RenderCleanup(manifests fs.FS, image string, afterKubeProxy bool) ([]*unstructured.Unstructured, error) {
	var patches []patched
	if afterKubeProxy {
		patches = append(patches, patched{map[string]string{"kind": "DaemonSet", "name": "fairway-cleanup"},
			`[{"op":"add","path":"/spec/template/spec/initContainers/0/command/-","value":"--after-kube-proxy"}]`})
	}
	return build(manifests, image, kustomization{
		APIVersion: "kustomize.config.k8s.io/v1beta1", Kind: "Kustomization", Resources: []string{"deploy/cleanup"}, Patches: patches,
	})
}

// build runs kustomize in memory, over an overlay next to the manifests.
func build(manifests fs.FS, image string, overlay kustomization) ([]*unstructured.Unstructured, error) {
	disk := filesys.MakeFsInMemory()
	err := fs.WalkDir(manifests, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(manifests, p)
		if err != nil {
			return err
		}
		return disk.WriteFile(path.Join("/deploy", p), text)
	})
	if err != nil {
		return nil, fmt.Errorf("read the manifests in this program: %w", err)
	}
	for p, k := range map[string]kustomization{"/kustomization.yaml": overlay, "/deploy/image/kustomization.yaml": imageComponent(image)} {
		text, err := json.Marshal(k)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", p, err)
		}
		if err := disk.WriteFile(p, text); err != nil {
			return nil, fmt.Errorf("write %s: %w", p, err)
		}
	}
	all, err := objects.Kustomize(disk, "/")
	if err != nil {
		return nil, fmt.Errorf("build the manifests: %w", err)
	}
	return all, nil
}
