// Package fence lets the kernel mute this node for load-balancer addresses that the node does not hold, even if the
// process that announces them hangs or dies.
//
//	request for a grant ── Ticket(slot) ──→ tickets  { slot, timeout 488 ms }
//	it was granted ─────── Confirm(slot) ─→ granted  { slot, timeout 488 ms }
//	Hold ─────────────────────────────────→ held4, held6
//	ARP, neighbour advertisement ─ egress of eth0 ─ guarded? ─ held? ─ a slot in both? ─→ wire
//
// The kernel counts from the request, not from the answer. If a process is stopped between the answer and the
// confirmation, its ticket has run out by then and the confirmation has no effect. So no pause, however long, lets the
// node speak too late.
//
// Tickets and confirmations are packets to the loopback interface. Rules update the sets by them and drop them. A
// transaction of nf_tables would wait for other transactions, which take seconds while another program writes thousands
// of rules. It would also wake all programs that watch their own tables, ten times a second.
//
// A second table, fairway-former, forwards packets in the middle of TCP connections that this node does not know to
// nodes that may know them (Forwarding). It does the same with ICMP errors about packets of unknown connections.
//
// The package encapsulates nf_tables, marks and sockets. Its promises:
//
//   - While no request is granted, no ARP packet and no neighbour advertisement leaves that names a guarded address as
//     its sender, even if the process is killed or stopped.
//   - Ticket fails if the rules are gone.
//   - It writes no rule while nothing changes.
package fence
