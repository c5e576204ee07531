// Package uml runs a test binary in a kernel of its own: user-mode Linux, a kernel that
// is a process. It is for what the machine's kernel lacks (IPVS).
//
//	go test ─ Build ─→ test binary ─┐
//	                                ├─ Run ─→ linux.uml ─ init script ─→ test binary ─→ output, status
//	hack/mkuml ─→ bin/linux.uml ────┘            └─ the host's files, read-only
//
// It needs no root. It hides how the kernel is found and started, and how the status of a program comes
// out of it. It promises:
//   - Honest: a kernel that is missing, dies, hangs or says nothing is an error. Only
//     a program that was started and ended by itself has a status.
//   - Nothing stays: the kernel dies with the process that started it, also if that is
//     killed with -9, and writes nothing to the host but its scratch directory.
//   - Nothing leaves: the kernel has no network device to the outside.
//
// With Options.Virtual time is the kernel's own: it stands still while anything computes
// and jumps when all wait. Silence of a second costs nothing then, and no answer is
// late because the machine is busy. A test whose goroutines must take turns needs
// real time: where the clock stands still, no goroutine is preempted.
package uml
