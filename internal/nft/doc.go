// Package nft keeps tables of nf_tables whose program is constant and whose sets and maps
// are data.
//
//	Program ── Load, once per version, as text ──→ ┌────────────┐
//	Write…  ── Commit, over one open socket ─────→ │ table inet │ ← packets
//	Element ←─ Elements, Intervals ─────────────── │    NAME    │
//	Watch   ←─ generation, handles of rules ────── └────────────┘ ← another program
//
// It hides netlink, the program nft and what the kernel is slow at, and knows nothing
// of Services: every mechanism that needs such a table, a whole datapath or the few
// rules beside IPVS, says what its rules and elements mean.
//
// It promises that a commit is one transaction as long as it is not larger than
// elementsPerCommit, that nothing but the named table is touched, that a program which
// is loaded is not loaded again, that elements survive the load of another version, that
// a table goes without a packet being refused on the way (Delete), and that every question
// to the kernel and every run of nft ends with its context, or after a limit.
//
// # Whose change was it?
//
// The kernel has one number for all tables of a network namespace, the generation. Each
// transaction that changes something adds one; one that changes nothing adds none. So a
// Watch that finds a larger number than it knows must learn whether another program
// changed its table, or a Table of this process (the pods' masquerading, a reset
// connection, the same Table) changed its own, which is no reason to read 50,000 Services
// back. All Tables of a process share a ledger for each network namespace: the generations
// that this process made, and which Table made each. Another process of ours (an agent
// before this one, the CNI plugin) is foreign.
//
// To read the number before and after a commit would not tell: another program's
// transaction may lie between, and if ours changed nothing the sum is right all the same.
// The kernel tells it exactly. If the first message of a batch asks for an echo, the
// kernel sends the new generation to the socket, out of the transaction itself, before the
// acknowledgement; no message means no new generation. So commits need no lock, and two
// that are made at the same time are entered right.
//
//	commit ── batch, first message with NLM_F_ECHO ──→ kernel
//	ledger ←─ NEWGEN 4711 ─ acknowledged ───────────── kernel
//
// A program that we start, nft or iptables-nft-restore, does not tell. Its caller says how
// many transactions it makes; the number is read before it starts and after it ends, and
// the generations between that have no entry are the program's if they are exactly as
// many. Programs that overlap are counted together. If another program wrote meanwhile,
// they are more, none is entered, and the Watch compares. What remains: a program of ours
// whose transaction changes nothing, and another program's single transaction in the
// moment that it runs, are taken for ours.
//
// A Watch that finds a generation without an entry waits for commits and programs that are
// under way, because a transaction is in the kernel before it is in the ledger; not for
// longer than patience, so that one that hangs does not hold up another Table for long. What is left after
// that is foreign, which is never wrong but costs a comparison. A ledger lives as long as a
// Table is open in its namespace, and keeps the namespace, so that its number names no
// other one.
package nft
