// Package liveness carries the speaker's list of dead nodes to the other programs of its node. Nodes declare a peer dead.
//
//	election (speaker) ─→ Publisher ═ socket @fairway/speaker ═→ Follower ─→ service.Facts.Dead (agent)
//	                                                        └──→ Ask (fairway explain, fairway diff)
//
// The protocol is lines of JSON, each with the whole list. A Follower's list is at most Lapse old: a speaker that hangs,
// ends, or hears no majority sends nothing, and then no node is dead. Both ends accept only root. On a node without one
// of the two programs there is no connection, and nothing else changes.
package liveness
