// Package bgp announces load-balancer addresses to routers, by BGP, and the node's podCIDRs if its agent asks for it.
//
//	Source (API server) ─→ announce.DecideBGP ─→ sessions and their routes ─→ one GoBGP server a session ⇄ router
//	agent ⇄ rib: podCIDRs, what routers announce  └─ bfd.Watch: which router is gone
//
// It hides GoBGP: its policies, its paths, its states; and in which order sessions and routes
// change. It promises: what the objects say is what routers hear, also after an error, a lost
// session or a router that restarts; an address is announced only when the node's proxy has its
// rules in the kernel; what a router announces to us goes to the agent, and to the nodes for which this one is a route reflector, and nowhere else, and a router that
// misbehaves harms its own session only; no port listens but BFD's, and a route reflector's; a router that BFD
// finds silent has no session; a clean end takes back what was announced,
// but where graceful restart keeps it for the next start.
package bgp
