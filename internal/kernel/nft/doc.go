// Package nft keeps tables of nf_tables whose program is constant and whose sets and maps
// are data.
//
//	Program ── Load, once per version, as text ──→ ┌────────────┐
//	Write…  ── Commit, over one open socket ─────→ │ table inet │ ← packets
//	Element ←─ Elements, Intervals ─────────────── │    NAME    │
//	Watch   ←─ generation, hashes of rules ─────── └────────────┘ ← another program
//
// It hides netlink, the program nft and the slow operations of the kernel, and knows
// nothing of Services: every mechanism that needs such a table, a whole datapath or the few
// rules beside IPVS, defines what its rules and elements mean.
//
// It promises that a commit is one transaction as long as it is not larger than
// elementsPerCommit, that nothing but the named table (and its copy, see Declare) is
// touched, that a program which is loaded is not loaded again, that elements survive the
// load of another version and every failure of nft, that a changed rule is found also by
// the next process (Seal), that the removal of a table rejects no
// packet (Delete), and that every request to the kernel and every run of nft ends with its
// context, or after a limit.
//
// # Which program made a change
//
// The kernel has one number for all tables of a network namespace, the generation. Each
// transaction that changes something adds one; a transaction without a change adds none.
// So a Watch that finds a larger number than the last must find out whether another program
// changed its table, or a Table of this process (the pods' masquerading, a reset
// connection, the same Table) changed its own, which is no reason to read 50,000 Services
// back. All Tables of a process share a ledger for each network namespace: the generations
// that this process made, and which Table made each. Another process of ours (an agent
// before this one, the CNI plugin) is foreign.
//
// Reading the number before and after a commit is not enough: another program's transaction
// may lie between, and if ours changed nothing the sum is correct all the same. The kernel
// reports it exactly. If the first message of a batch asks for an echo, the kernel sends
// the new generation to the socket, from the transaction itself, before the acknowledgement;
// no message means no new generation. So commits need no lock, and two commits at the same
// time are recorded correctly.
//
//	commit ── batch, first message with NLM_F_ECHO ──→ kernel
//	ledger ←─ NEWGEN 4711 ─ acknowledged ───────────── kernel
//
// A program that we start, nft or iptables-nft-restore, does not report its generations. Its
// caller says how many transactions it makes. The number is read before it starts and after
// it ends, and the generations between without an entry are the program's if they are
// exactly as many. Programs that overlap are counted together. If another program wrote
// meanwhile, there are more; none is recorded, and the Watch compares. One error remains: if
// a transaction of our program changes nothing, and another program makes one transaction
// while ours runs, that transaction is taken for ours.
//
// A Watch that finds a generation without an entry waits for commits and programs in
// progress, because a transaction is in the kernel before it is in the ledger. It waits for
// patience at most, so that a hanging program does not delay another Table for long.
// Generations still without an entry are foreign, which is never wrong but costs a
// comparison. A ledger lives as long as a Table is open in its namespace, and keeps the
// namespace open, so that no other namespace gets its number.
package nft
