// Package announce decides which nodes announce which load-balancer addresses, and to which routers. It sends nothing.
//
//	metallb.io objects ── internal/kube ──→ L2Advertisement, BGPAdvertisement, BGPPeer …
//	Services, endpoints, nodes ───────────→ Decide ──→ for each address: candidates, the best first, or a reason
//	candidates, who is out (election) ────→ Owner
//
// The package is pure: values in, values out, no clock, no kernel, no API server. All nodes decide the same. A node that
// comes or goes moves only the addresses that it gets or had.
package announce
