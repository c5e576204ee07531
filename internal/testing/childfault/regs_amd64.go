package childfault

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// readCall returns the system call that the program is about to make.
func readCall(pid int) (call, error) {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &r); err != nil {
		return call{}, fmt.Errorf("ptrace: %w", err)
	}
	return call{r.Orig_rax, [3]uint64{r.Rdi, r.Rsi, r.Rdx}}, nil
}

// skipCall makes the kernel skip the system call that the program is about to make.
func skipCall(pid int) error {
	return changeRegisters(pid, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// setResult makes the system call that the program has just made fail.
func setResult(pid int, errno unix.Errno) error {
	return changeRegisters(pid, func(r *unix.PtraceRegs) { r.Rax = -uint64(errno) })
}

func changeRegisters(pid int, change func(*unix.PtraceRegs)) error {
	var r unix.PtraceRegs
	err := unix.PtraceGetRegs(pid, &r)
	if err == nil {
		change(&r)
		err = unix.PtraceSetRegs(pid, &r)
	}
	if err != nil {
		return fmt.Errorf("ptrace: %w", err)
	}
	return nil
}
