// Package nftables writes a networkpolicy.Table to the kernel. One constant nf_tables program decides, and its elements
// are the table.
//
//	networkpolicy.Table ─ Sync ─→ pod-classes4, network-classes4, views-egress4, egress4, … ← packets
//	Sandboxes           ←─ Adopt ─ sandboxes4
//
// The package encapsulates the bytes of elements and the order of writes. It promises:
//
//   - A change writes only the elements that differ, in one transaction as long as package nft makes it one.
//   - No packet passes without a grant while a table is written: grants and isolation of a pod come together, or
//     isolation comes later.
//   - A new agent finds everything in place, and writes only differences.
//   - Changes of other programs are undone.
//
// It works in the network namespace of the goroutine's thread.
package nftables
