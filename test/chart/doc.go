// Package chart renders the Helm chart with Helm and compares its objects with those that
// `fairway install` applies.
//
//	values ─┬─ hack/chart ─ Helm's engine ─┐
//	        └─ internal/operate/install ─ kustomize ───┴─ equal?
//
// `make test-helm` installs, upgrades and removes it by Helm's own actions in a lab.
//
// It is a module of its own, so that Helm is no dependency of the product.
package chart
