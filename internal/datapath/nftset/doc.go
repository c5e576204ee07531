// Package nftset is the common part of the modes that use nf_tables: nftables, ipvs and userspace. Each mode has a
// table of its own. Sets and maps with the same meaning have the same names, keys and order of writes in all modes.
//
//	Frontend ─ FrontendKey ─→ frontends4 : verdict ─┐
//	Sources ── SourceRanges ─→ source-ranges4       ├─ rules of each mode
//	Settings ─ Settings ─────→ pods4, …             │
//	endpoints on the node ───→ hairpin4, cluster-ips4
//
// The package encapsulates the bytes of keys and data. Its Syncer carries a mode's table through Adopt, Sync and Check.
//
// It promises:
//   - An element has the same form in all modes.
//   - Another version of a mode takes over the elements of all sets that keep their name and type.
package nftset
