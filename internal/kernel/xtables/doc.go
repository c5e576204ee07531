// Package xtables runs the iptables programs, and reads what iptables-save prints and what
// iptables-nft has written into nf_tables.
//
//	iptables-nft-save ── text ──→ Scan ──→ Line, Line, …     Words, Target of a rule
//	                 text ──→ Restore ──→ iptables-nft-restore
//	expressions of a rule in nf_tables ──→ Decode ──→ the same text, or "unknown"
//
// It hides which program there is for a variant and a family, how one is run, and the
// syntax of iptables-save. It promises that text is read as a stream; that every program
// ends with its context or after Deadline, and that what it printed as an error is in the
// error; and that iptables-legacy is never asked where it would make the kernel load it.
// What chains mean, its callers know; the names that kube-proxy gives to chains are here,
// because both mode iptables, which writes them, and the takeover, which removes them, need
// them.
//
// It is apart from datapath/iptables because package takeover must not depend on a mode.
package xtables
