// Package nft keeps one table of nf_tables whose program is constant and whose sets and
// maps are data.
//
//	Program ── Load, once per version, as text ──→ ┌────────────┐
//	Write…  ── Commit, over one open socket ─────→ │ table inet │ ← packets
//	Element ←─ Elements, Intervals ─────────────── │    NAME    │
//	Watch   ←─ generation, handles of rules ────── └────────────┘ ← another hand
//
// It hides netlink, the program nft and what the kernel is slow at, and knows nothing
// of Services: every mechanism that needs such a table, a whole datapath or the few
// rules beside IPVS, says what its rules and elements mean.
//
// It promises that a commit is one transaction as long as it is not larger than
// elementsPerCommit, that nothing but the named table is touched, that a program which
// is loaded is not loaded again, that elements survive the load of another version, and
// that a table goes without a packet being refused on the way (Delete).
package nft
