// Package lb decides which endpoint of a route takes a connection, the same in every mode.
//
//	weights ── Shares ──→ slots of each endpoint ─┬─ Turns ──→ order of round robin
//	                                              └─ Slots ──→ list for random, hashes
//	endpoints ───────────── Maglev ──────────────────────────→ list for Maglev
//	client's address ────── Hash, Pick ──────────────────────→ slot in a list
//	names ── IDs ──→ numbers that the kernel holds, kept over restarts
//
// It hides the arithmetic of load balancing: reduced weights, smooth round robin, Maglev's
// lookup table, and the kernel's hash function. It promises that lists depend on nothing
// but the arguments, so that every node and every mode computes the same list, and that
// an endpoint which stays keeps its slots.
//
// How far modes agree on the endpoint of one client:
//   - maglev in nftables and userspace: always. Both have Maglev's list and index it by
//     Hash of the client's address, which is nft's "jhash ip saddr seed 1".
//   - sh and dh in nftables and userspace: as long as both filled their lists for the same
//     endpoints from nothing. Slots keeps endpoints where they are, so that after changes
//     a list also depends on what it was before.
//   - mh, sh and dh in ipvs: never. The kernel module ip_vs_mh has a table and a siphash of
//     its own, ip_vs_sh and ip_vs_dh a multiplicative hash; none takes a list from outside.
//     A switch to or from ipvs moves clients.
//   - random and rr: there is nothing to agree on. nftables and userspace choose a slot of
//     the same list (nft's numgen); iptables' match "statistic" takes one rule after the
//     other, each with its share of what is left.
package lb
