package manifest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// Build copies the directory base to dir/deploy and writes overlay, the text of a kustomization.yaml that may refer to
// "deploy", into dir. It returns the resulting objects in the order in which to apply them. image replaces the copy's
// image/kustomization.yaml, unless it is empty.
func Build(dir, base, overlay, image string) ([]*unstructured.Unstructured, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("clear overlay: %w", err)
	}
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(base)); err != nil {
		return nil, fmt.Errorf("copy manifests: %w", err)
	}
	if image != "" {
		if err := os.WriteFile(filepath.Join(dir, "deploy/image/kustomization.yaml"), []byte(image), 0o644); err != nil {
			return nil, fmt.Errorf("name the image: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o644); err != nil {
		return nil, fmt.Errorf("write overlay: %w", err)
	}
	all, err := objects.Kustomize(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build manifests of %s: %w", base, err)
	}
	return all, nil
}

// Apply creates or updates the objects in the cluster.
func Apply(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	for _, o := range objects {
		gvk := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return fmt.Errorf("find kind of %s: %w", name(o), err)
		}
		data, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode %s: %w", name(o), err)
		}
		force := true
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		_, err = client.Resource(mapping.Resource).Namespace(o.GetNamespace()).Patch(ctx, o.GetName(),
			types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: "fairway-lab", Force: &force})
		cancel()
		if err != nil {
			return fmt.Errorf("apply %s: %w", name(o), err)
		}
	}
	return nil
}

func name(o *unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }
