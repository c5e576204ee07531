// Package layer2 announces load-balancer addresses on the node's own networks. It joins the packages that decide,
// grant, mute and answer.
//
//	Source (API server) ─→ announce.Decide ─→ claims ─→ election.Member ⇄ UDP ⇄ other speakers
//	                                                      │ Change
//	                                    drop ↓ add ↓ confirm ↓
//	                                        fence.Fence (kernel) ─ then ─→ arp.Responder
//
// The package encapsulates the order of these steps. Its promises:
//
//   - An address leaves the fence before any voter may grant it to another node, and enters the fence after a majority
//     has granted it to this node.
//   - Without the API server the last known decisions stay valid, and addresses still move from nodes that die.
//   - A speaker that ends announces nothing and leaves the rules that traffic needs.
//
// The speaker's loop is one goroutine. Each part of its state has a file: claims.go (addresses to ask for), forward.go
// (packets of other nodes' connections), errortree.go (ICMP errors about them), refused.go (addresses that this node must
// not announce), owners.go (egress), links.go (interfaces), probe.go (addresses of other
// machines), holdback.go (a node that was cut off), voting.go (the list of voters), lease.go (the third vote of two
// nodes) and granted.go (the node's grant).
package layer2
