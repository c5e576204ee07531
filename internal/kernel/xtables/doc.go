// Package xtables runs the iptables programs, and reads rules: the output of iptables-save, and the expressions that
// iptables-nft writes into nf_tables.
//
//	iptables-nft-save ── text ──→ Scan ──→ Line, Line, …     Words, Target of a rule
//	                 text ──→ Restore ──→ iptables-nft-restore
//	expressions of a rule in nf_tables ──→ Decode ──→ the same text, or "unknown"
//
// It knows the program of each variant and family, how to run it, and the syntax of iptables-save. It promises:
//
//   - Text is read as a stream.
//   - Each program ends with its context, or after Deadline. An error has what the program printed as an error.
//   - iptables-legacy-save does not run if it would make the kernel load iptables-legacy.
//
// The names that kube-proxy gives to chains are here, because two packages need them: mode iptables, which writes the
// chains, and takeover, which removes them and must not depend on a mode. What chains mean, their callers know.
package xtables
