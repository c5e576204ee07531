// Package deploy holds the manifests of Fairway on a cluster, for `fairway install` and for
// the chart. They are the very files that `kubectl apply -k deploy/` reads.
//
//	deploy/*.yaml ──┬── kubectl apply -k, fairway-lab
//	                └── Files ──> internal/operate/install (kustomize as a library)
//
// It promises that what is embedded is the whole of what a kustomization here names.
package deploy

import "embed"

// Files are the kustomizations and their resources, by their path in this directory.
//
//go:embed kustomization.yaml agent cleanup components dns dns-service image pools
var Files embed.FS
