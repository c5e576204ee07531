// Package observe watches one node's kernel for a probe packet, and reads what the probe needed.
//
//	Arm(order) ─→ table fairway-path-RUN: sets nftrace on the probe and on its answer
//	    │
//	    │   nf_tables ── trace messages ──┐
//	    │   conntrack ── new, update ─────┼─→ records, bounded
//	    │   kfree_skb ── reason ──────────┘      (eBPF, where the process has the rights)
//	    ▼
//	Stop ─→ join by trace and conntrack id, read the rules' text and the node's state ─→ []trace.Observation
//
// It encapsulates the kernel's formats: trace messages of netlink, BTF offsets, sock_diag.
//
// Promises:
//   - It changes nothing except its table, and a rule of this table never drops, translates or marks a packet.
//   - Nothing is left behind: the kernel deletes the table and the eBPF program with the process, also after kill -9.
//   - Other packets cost one comparison. At most tracesPerSecond packets a second are traced, and maxRecords records are
//     kept, in any time. Done.Lost says that a bound was reached.
//   - A source that does not work here is missing, with the reason. Only without nf_tables there is no observation.
//   - Messages of the kernel are not trusted to be whole.
//
// Needs CAP_NET_ADMIN; drop reasons also need CAP_BPF and CAP_PERFMON.
package observe
