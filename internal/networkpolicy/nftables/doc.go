// Package nftpolicy makes the kernel do what a policy.Table says, with one constant program of
// nf_tables whose elements are the table.
//
//	policy.Table ─ Sync ─→ pod-classes4, block-classes4, isolated-egress4, egress4, … ← packets
//	Sandboxes   ←─ Adopt ─ sandboxes4
//
// It hides the bytes of elements and the order in which they are written. It promises that a
// change writes what changed and is one transaction as long as package nft makes it one; that
// a pod is isolated in the transaction that grants it something, or after it, never before a
// packet could pass which nothing grants; that another agent finds everything in place and
// writes what differs only; and that a table which another program changed is restored.
//
// It works in the network namespace of its goroutine's thread.
package nftables
