// Package uml runs a test binary in its own kernel: user-mode Linux, a kernel that is a process. It is for features that the
// machine's kernel may lack, such as IPVS.
//
//	go test ─ Build ─→ test binary ─┐
//	                                ├─ Run ─→ linux.uml ─ init script ─→ test binary ─→ output, status
//	hack/mkuml ─→ bin/linux.uml ────┘            └─ the host's files, read-only
//
// It needs no root. Promises:
//   - Honest: a kernel that is missing, dies, hangs or prints no status is an error. Only a program that started and
//     ended by itself has a status.
//   - Nothing stays: the kernel dies with the process that started it, also if that process is killed with -9. It writes
//     only to its scratch directory on the host.
//   - Nothing leaves: the kernel has no network device to the outside.
//
// With Options.Virtual the kernel has its own time. The time stands still while a process computes, and jumps when all
// processes wait. Then waiting for a second costs nothing, and no answer is late because the machine is busy. A test whose
// goroutines must take turns needs real time: while the clock stands still, no goroutine is preempted.
package uml
