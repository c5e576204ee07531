// Package nftset is what the modes on nf_tables have in common: nftables, ipvs and
// userspace keep their Services in sets and maps of the same names, keys and order of
// writing, each in a table of its own.
//
//	Frontend ─ FrontendKey ─→ frontends4 : verdict ─┐
//	Sources ── SourceRanges ─→ source-ranges4       ├─ rules of each mode
//	Settings ─ Settings ─────→ pods4, …             │
//	endpoints on the node ───→ hairpin4, cluster-ips4
//
// It hides the bytes of keys and data, and what former releases called the sets. It
// promises that an element has one form in all modes, and that another release takes
// over with all elements in place (Migrate).
package nftset
