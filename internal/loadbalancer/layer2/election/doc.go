// Package election grants addresses to nodes, each address to one node at a time. A quorum of the nodes decides,
// without the API server.
//
//	owner ── heartbeat: "my list, version 7" ──→ voters        every 100 ms
//	owner ←─ grant: "yes, except 192.0.2.3" ──── each voter
//	a majority: held for 500 ms after sending │ promised for 550 ms after receiving
//
// A node holds the addresses of its list while a majority of the voters has granted them in one round, for 500 ms from
// the moment it asked. A voter promises them to no other node for 550 ms from the moment it heard the request. So clocks
// need not agree; they must only run at nearly the same rate. A voter that starts may have forgotten promises, so it
// votes after 550 ms.
//
// Addresses that a node gives up have left the node's fence before the voters hear of it, so the voters may grant them
// to another node at once. Nothing is promised before the first list of voters, so that list may have any members. Later
// the list changes by one voter at a time, so the majorities of successive lists have a voter in common.
//
// One vote covers all addresses of a node. Messages do not grow with the number of addresses, except the list, which is
// sent when it changes.
//
// The package encapsulates messages, their authentication, and the protection against replays. Its promises:
//
//   - It is pure: packets and times in, packets and a Change out. It imports the standard library only.
//   - Two nodes never hold one address at the same time, whatever the network and the processes do. The rates of the
//     clocks must differ by less than 4%, and the caller must mute a node after its grant (package fence).
package election
