// Package ipam knows which addresses Services of type LoadBalancer may have.
//
//	IPAddressPool ── internal/kube ──→ Pool ── Contains(address)
//
// It hides how pools are written. It promises to be pure: values in, values out, no clock, no
// chance, no API server.
package ipam
