// Package bgp announces load-balancer addresses to routers by BGP, and the node's podCIDRs if its agent asks for it.
//
//	Source (API server) ─→ announce.DecideBGP ─→ sessions and their routes ─→ a GoBGP server per session ⇄ router
//	agent ⇄ podroutes: podCIDRs, received routes        └─ bfd.Watch: which router is gone
//
// The package encapsulates GoBGP, with its policies, paths and states, and the order in which sessions and routes
// change. Its promises:
//
//   - Routers hear the routes of the objects, also after an error, a lost session or a router's restart.
//   - An address is announced only after the node's proxy has its rules in the kernel.
//   - Routes from a router go to the agent, and to the clients of this node's route reflector, and nowhere else.
//   - A router that misbehaves harms its own session only.
//   - No port listens, except BFD's and a route reflector's.
//   - A router that BFD finds silent has no session.
//   - A clean end takes back all routes, unless graceful restart keeps them for the next start.
package bgp
