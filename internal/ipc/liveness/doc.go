// Package liveness tells the programs on a node which other nodes their peers declare dead.
//
//	election (speaker) ─→ Publisher ═ socket @fairway/speaker ═→ Follower ─→ service.Node.Dead (agent)
//	                                                        └──→ Ask (fairway explain, fairway diff)
//
// It hides the socket and its protocol: lines of JSON, each with all that is known. It promises
// that what a Follower says is at most Lapse old: a speaker that hangs, ends, or hears no majority
// says nothing, and nothing is dead then. Only root is believed. A node where one of the two
// programs does not run has no connection, and loses nothing else.
package liveness
