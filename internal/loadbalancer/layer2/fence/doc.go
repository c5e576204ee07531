// Package fence lets the kernel mute this node for load-balancer addresses that it does not
// hold, whatever becomes of the process that announces them.
//
//	request for a grant ── Ticket(slot) ──→ tickets  { slot, timeout 488 ms }
//	it was granted ─────── Confirm(slot) ─→ granted  { slot, timeout 488 ms }
//	Hold ─────────────────────────────────→ held4, held6
//	ARP, neighbour advertisement ─ egress of eth0 ─ guarded? ─ held? ─ a slot in both? ─→ wire
//
// The kernel counts from the request, not from the answer: a process that is stopped between
// the answer and the confirmation confirms a ticket that has run out, which has no effect.
// So there is no moment at which a pause, however long, lets the node speak too late.
//
// Tickets and confirmations are packets to the loopback interface, whose rules update the
// sets and drop them. A transaction of nf_tables would do it too, but waits for other
// transactions, which take seconds where another program writes thousands of rules, and
// makes each program that watches its own tables look at them ten times a second.
//
// Beside it stands who had an address before this node (Former): packets in the middle of TCP
// connections that this node does not know go there.
//
// It hides nf_tables, marks and sockets. It promises that nothing which names a guarded
// address as its sender's leaves by ARP or by neighbour advertisement while no request is
// granted, also if the process is killed or stopped; that its Tickets fail if the rules are
// gone; and that it writes no rule while nothing changes.
package fence
