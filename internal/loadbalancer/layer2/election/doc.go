// Package election grants addresses to nodes: each to one node at a time, by a quorum of the
// nodes themselves, without the API server.
//
//	owner ── heartbeat: "my list, version 7" ──→ voters        every 100 ms
//	owner ←─ grant: "yes, but for 192.0.2.3" ─── each voter
//	a majority: held for 500 ms, from sending on │ promised for 550 ms, from receiving on
//
// A node holds the addresses of its list as long as a majority of the voters granted them in
// one and the same round, for 500 ms from the moment it asked. A voter promises them to no
// other node for 550 ms from the moment it heard. So clocks need not agree, they must only
// run at nearly the same rate. A voter that starts waits for 550 ms before it votes, because
// it may have forgotten promises. What a node gives up has left its fence before the voters
// learn of it, so that they may grant it to another node at once. The first list of voters may
// be any, for nothing was promised before it; then the list changes by one at a time: majorities
// of two lists that follow each other have a voter in common.
//
// One vote is for all addresses of a node: what is sent does not grow with them, but for the
// list, which is sent when it changes.
//
// It hides messages, their authentication, and the protection against replays. It promises
// to be pure: packets and times in, packets and a Change out; the standard library only. It
// promises that no address is held by two nodes at one moment, whatever the network and the
// processes do, if the rates of the clocks differ by less than 4% and if the caller mutes a
// node when its grant is over (package fence).
package election
