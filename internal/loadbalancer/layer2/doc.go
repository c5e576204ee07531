// Package speaker runs the announcing of load-balancer addresses on a node: it joins what
// decides, what grants, what mutes and what answers.
//
//	Source (API server) ─→ announce.Decide ─→ claims ─→ election.Member ⇄ UDP ⇄ other speakers
//	                                                      │ Change
//	                                    drop ↓ add ↓ confirm ↓
//	                                        fence.Fence (kernel) ─ then ─→ l2.Announcer
//
// It hides in which order these must be told what. It promises: an address leaves the fence
// before any voter may grant it to another node, and enters it after a majority has granted it to
// this one; without the API server everything goes on as it was last known, and addresses
// move from nodes that die; its end leaves nothing that announces, and removes no rule that
// traffic needs.
package layer2
