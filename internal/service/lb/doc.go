// Package lb chooses the endpoint of a route for a connection. The choice is the same in every mode.
//
//	weights ── Shares ──→ slots of each endpoint ─┬─ Turns ──→ order of round robin
//	                                              └─ Slots ──→ list for random, hashes
//	endpoints ───────────── Maglev ──────────────────────────→ list for Maglev
//	client's address ────── Hash, Pick ──────────────────────→ slot in a list
//	names ── IDs ──→ numbers that the kernel holds, kept over restarts
//
// The package encapsulates the arithmetic of load balancing: reduced weights, smooth round robin, Maglev's lookup table
// and the kernel's hash function. Lists depend only on the arguments, so every node and every mode computes the same
// list. An endpoint that stays keeps its slots.
//
// The modes agree on the endpoint of a client in this way:
//   - maglev in nftables and userspace: always. Both have Maglev's list and index it by the Hash of the client's address,
//     which is nft's "jhash ip saddr seed 1".
//   - sh and dh in nftables and userspace: while both filled new lists for the same endpoints. Slots keeps endpoints at
//     their places, so after changes a list also depends on its predecessor.
//   - mh, sh and dh in ipvs: never. The kernel module ip_vs_mh has its own table and a siphash, ip_vs_sh and ip_vs_dh
//     have a multiplicative hash; none takes a list from outside. A switch to or from ipvs moves clients.
//   - random and rr: there is no client to agree on. nftables and userspace choose a slot of the same list (nft's
//     numgen). iptables' match "statistic" tries the rules in order, each with its share of the remaining connections.
package lb
