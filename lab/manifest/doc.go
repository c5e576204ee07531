// Package manifest builds a kustomization in a directory and applies it to a cluster.
//
//	deploy/ ──┐
//	          ├─ Build ──> objects ──> Apply ──> kube-apiserver
//	overlay ──┘
//
// The package handles kustomize and discovery. It promises that Apply may run repeatedly, because it uses server-side
// apply with one field manager.
package manifest
