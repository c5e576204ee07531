package objects

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Kustomize returns the objects of a kustomization in a directory, in the order of installation: namespaces, kinds and
// roles first.
func Kustomize(disk filesys.FileSystem, dir string) ([]*unstructured.Unstructured, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy
	built, err := krusty.MakeKustomizer(options).Run(disk, dir)
	if err != nil {
		return nil, err
	}
	var all []*unstructured.Unstructured
	for _, r := range built.Resources() {
		data, err := r.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", r.CurId(), err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			return nil, fmt.Errorf("decode %s: %w", r.CurId(), err)
		}
		all = append(all, u)
	}
	return all, nil
}
