// Package nft keeps tables of nf_tables in the kernel. The rules of a table are constant. Sets and maps hold the data.
//
//	Ruleset ── Load, once per version, as text ─→ ┌────────────┐
//	Write…  ── Commit, over one open socket ────→ │ table inet │ ← packets
//	Element ←─ Elements, Intervals ────────────── │    NAME    │
//	Watch   ←─ generation, hashes of rules ────── │            │ ← another program
//	Monitor ←─ notifications ──────────────────── └────────────┘
//
// The package encapsulates netlink, the program nft and the slow operations of the kernel. It knows nothing of
// Services: the caller defines the meaning of rules and elements.
//
// It promises:
//   - A commit of up to elementsPerCommit elements is one transaction.
//   - It changes the named table only, and the copy of this table that Declare makes.
//   - It does not load a ruleset again that the kernel has already.
//   - Elements survive the load of another version, and every failure of nft.
//   - It finds rules that another program changed, also while no process of ours ran (Seal). A Monitor finds the change
//     at once.
//   - No packet is rejected while Delete removes a table.
//   - Every request to the kernel and every run of nft ends with its context, or after netlink.Limit.
//
// # Which program made a change
//
// The kernel has one number for all tables of a network namespace: the generation. Each transaction that changes
// something adds one. A Watch that finds a larger generation must know which program made the transactions since. Our
// own changes need no action. After a change by another program the caller reads its table again, for example 50,000
// Services.
//
// All Tables of a process share one ledger for each network namespace. The ledger records the generations that this
// process made, and the Table that made each. All other processes are foreign, for example the CNI plugin.
//
// The kernel itself reports the generation of a commit. If the first message of a batch asks for an echo, the kernel
// sends the new generation before its acknowledgement. It sends none if the transaction changed nothing. So commits
// need no lock, and two commits at the same time are recorded correctly. Reading the generation before and after a
// commit is not enough: another program's transaction may lie between them.
//
//	commit ── batch, first message with NLM_F_ECHO ──→ kernel
//	ledger ←─ NEWGEN 4711 ─ acknowledged ───────────── kernel
//
// The programs nft and iptables-nft-restore do not report their generations. Their caller knows the number of their
// transactions. The ledger compares this number with the generations that appeared during the run and have no entry:
//   - Equal: the generations belong to the program. Programs that run at the same time are counted together.
//   - Different: another program made transactions too. None is recorded, and the Watch compares the table.
//
// One error remains: if a transaction of our program changes nothing, and another program makes exactly one
// transaction during the run, the ledger takes that transaction for ours.
//
// A transaction is in the kernel before it is in the ledger. So a Watch that finds a generation without an entry waits
// for commits and programs in progress, at most for the time patience. A generation that still has no entry is foreign.
// Such a mistake costs one comparison and is never wrong.
//
// A ledger exists as long as a Table is open in its namespace. It keeps the namespace open, so that no other namespace
// gets its number.
package nft
