// Package announce decides who announces which load-balancer address, and to whom.
//
//	metallb.io objects ── internal/kube ──→ L2Advertisement, BGPAdvertisement, BGPPeer …
//
// It hides which advertisement is for which pool, node and Service. It promises to be pure:
// values in, values out, no clock, no kernel, no API server.
package announce
