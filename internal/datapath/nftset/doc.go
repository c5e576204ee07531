// Package nftset is the common part of the modes on nf_tables: nftables, ipvs and userspace
// keep their Services in sets and maps with the same names, keys and order of writes, each
// mode in a table of its own.
//
//	Frontend ─ FrontendKey ─→ frontends4 : verdict ─┐
//	Sources ── SourceRanges ─→ source-ranges4       ├─ rules of each mode
//	Settings ─ Settings ─────→ pods4, …             │
//	endpoints on the node ───→ hairpin4, cluster-ips4
//
// It hides the bytes of keys and data, and the set names of former releases. It promises
// that an element has one form in all modes, and that another release takes over with all
// elements in place (Migrate).
package nftset
