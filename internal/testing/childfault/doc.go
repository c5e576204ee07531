// Package childfault makes a program that a test starts fail at one of its system calls, selected by number. So a test can
// try all of them.
//
//	code under test ── PATH ──→ stand-in (this test binary) ── ptrace ──→ nft, iptables-…
//	test ── Arm(7, Killed) ──→ plan │ steps, held ←── step 1, 2, … 7: killed
//
// A step is a system call by which a program speaks with the kernel's packet filter: a netlink message sent or received, or
// a socket option of iptables-legacy. Steps are counted from Arm on, over all programs that run one after the other.
// Two faults are equal if they leave equal states: FAIRWAY_FAULTS=all tries only one of them.
//
// Promises:
//   - Only the named programs are traced, and only if this process starts them.
//   - The program does nothing between the step and its fault.
//   - The program ends with its stand-in, which ends after a limit if nobody kills it.
//
// It is for tests: a TestMain calls Main first. It supports amd64 only.
package childfault
