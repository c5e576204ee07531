// Package announce decides who announces which load-balancer address, and to whom.
//
//	metallb.io objects ── internal/kube ──→ L2Advertisement, BGPAdvertisement, BGPPeer …
//	Services, endpoints, nodes ───────────→ Decide ──→ for each address: candidates, the best first, or a reason
//	candidates, who is out (election) ────→ Owner
//
// It hides which advertisement is for which pool, node and Service. It promises to be pure:
// values in, values out, no clock, no kernel, no API server; that all nodes decide the same;
// and that a node which comes or goes moves no address but those that it gets or had.
package announce
