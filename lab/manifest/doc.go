// Package manifest builds a kustomization in a directory and applies it to a
// cluster.
//
//	deploy/ ──┐
//	          ├─ Build ──> objects ──> Apply ──> kube-apiserver
//	overlay ──┘
//
// It hides kustomize and discovery. It promises that Apply may be repeated:
// objects are applied by the server, under one field manager.
package manifest
