// Package childfault makes a program that a test starts fail at one of its system calls, by
// number, so that a test can try all of them.
//
//	code under test ── PATH ──→ stand-in (this test binary) ── ptrace ──→ nft, iptables-…
//	test ── Arm(7, Killed) ──→ plan │ steps, held ←── step 1, 2, … 7: killed
//
// A step is a system call by which a program speaks with the kernel's packet filter: a
// message sent to or received from netlink, and iptables-legacy's socket options. Steps are
// counted over all programs that run one after the other since Arm. Two faults are the same if
// they leave the same behind: with FAIRWAY_FAULTS=all only one of them is tried.
//
// It hides ptrace. It promises that nothing is traced but the named programs, only those
// that this process starts; that the program does nothing between the step and its fault;
// and that it ends with its stand-in, which ends after a limit if nobody kills it.
//
// It is for tests: a TestMain calls Main first. It knows the registers of amd64 only.
package childfault
