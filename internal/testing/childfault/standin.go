package childfault

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Main returns at once, unless this process is the stand-in of a program. A stand-in runs the program, and ends with
// its exit code.
func Main() {
	dir, name := os.Getenv(environment), filepath.Base(os.Args[0])
	if dir == "" || !isStandIn(filepath.Join(dir, name)) {
		return
	}
	code, err := standIn(dir, name)
	if err != nil {
		fmt.Fprintf(os.Stderr, "stand-in for %s: %v\n", name, err)
		code = failed
	}
	os.Exit(code)
}

// failed is the exit code of a stand-in that could not run its program.
const failed = 125

func isStandIn(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.Mode().Type() == os.ModeSymlink
}

// standIn runs a program under ptrace and returns its exit code.
func standIn(dir, name string) (code int, err error) {
	rest := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(d string) bool { return d == dir })
	if err := os.Setenv("PATH", strings.Join(rest, ":")); err != nil {
		return 0, err
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return 0, err
	}
	tr := &tracer{dir: dir, name: name}
	if err := tr.read(); err != nil {
		return 0, err
	}
	defer tr.steps.Close()
	runtime.LockOSThread() // only the tracing thread may use ptrace
	child, err := os.StartProcess(path, append([]string{name}, os.Args[1:]...), &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Ptrace: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return 0, err
	}
	tr.pid = child.Pid
	return tr.run()
}

// A tracer follows one program.
type tracer struct {
	dir, name string
	pid       int
	at        int // the number of the step with the fault, or 0
	fault     Fault
	count     int // steps so far
	steps     *os.File
}

// read reads the plan and the number of earlier steps.
func (tr *tracer) read() error {
	plan, err := os.ReadFile(filepath.Join(tr.dir, planFile))
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(plan), &tr.at, &tr.fault); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	file := filepath.Join(tr.dir, stepsFile)
	steps, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	tr.count = strings.Count(string(steps), "\n")
	tr.steps, err = os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	return err
}

// syscallStop is the signal at a system call: SIGTRAP with the bit of PTRACE_O_TRACESYSGOOD.
const syscallStop = unix.SIGTRAP | 0x80

// run follows the program to its end.
func (tr *tracer) run() (code int, err error) {
	if _, err = tr.wait(); err != nil { // at its exec
		return 0, err
	}
	if err := unix.PtraceSetOptions(tr.pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL); err != nil {
		return 0, fmt.Errorf("ptrace: %w", err)
	}
	inside, here := false, false // in a system call; in the step with the fault
	signal := 0
	for {
		if err := unix.PtraceSyscall(tr.pid, signal); err != nil && !errors.Is(err, unix.ESRCH) { // ESRCH: the program was killed
			return 0, fmt.Errorf("ptrace: %w", err)
		}
		status, err := tr.wait()
		switch {
		case err != nil:
			return 0, err
		case status.Exited():
			return status.ExitStatus(), nil
		case status.Signaled():
			return 0, die(status.Signal())
		}
		if signal = int(status.StopSignal()); signal != int(syscallStop) {
			continue
		}
		signal = 0
		if inside = !inside; inside {
			if here, err = tr.step(); err == nil && here {
				err = tr.before()
			}
		} else if here {
			here, err = false, tr.after()
		}
		if err != nil {
			return 0, err
		}
	}
}

func (tr *tracer) wait() (status unix.WaitStatus, err error) {
	for {
		_, err := unix.Wait4(tr.pid, &status, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return status, err
		}
	}
}

// step counts the system call that the program is about to make, if it is a step. It reports whether it is the step
// with the fault.
func (tr *tracer) step() (here bool, err error) {
	c, err := readCall(tr.pid)
	if err != nil {
		return false, err
	}
	name, changes := c.kind()
	if name == "" {
		return false, nil
	}
	tr.count++
	_, err = fmt.Fprintln(tr.steps, tr.name, tr.pid, name, changes)
	return tr.count == tr.at, err
}

// A call is a system call and its first arguments.
type call struct {
	number uint64
	args   [3]uint64
}

// Socket options of iptables-legacy for both families: IPT_BASE_CTL. The first sets a table, or reads its size.
const (
	firstOption = 64
	lastOption  = firstOption + 3
)

// kind returns the name of a call that is a step, and whether it may change rules. The name is empty for other calls.
func (c *call) kind() (name string, changes bool) {
	level, option := c.args[1], c.args[2]
	xtables := (level == unix.SOL_IP || level == unix.SOL_IPV6) && option >= firstOption && option <= lastOption
	switch c.number {
	case unix.SYS_SENDTO:
		return "sendto", false
	case unix.SYS_SENDMSG: // a batch
		return "sendmsg", true
	case unix.SYS_RECVMSG:
		return "recvmsg", false
	case unix.SYS_RECVFROM:
		return "recvfrom", false
	case unix.SYS_SETSOCKOPT:
		if xtables {
			return "setsockopt", option == firstOption
		}
	case unix.SYS_GETSOCKOPT:
		if xtables {
			return "getsockopt", false
		}
	}
	return "", false
}

// before applies the part of the fault that comes before the call.
func (tr *tracer) before() error {
	switch tr.fault {
	case KilledBefore:
		return unix.Kill(tr.pid, unix.SIGKILL)
	case NoMemory, NoBuffers:
		return skipCall(tr.pid)
	case HeldBefore:
		return tr.hold()
	}
	return nil
}

// after applies the part of the fault that comes after the call.
func (tr *tracer) after() error {
	switch tr.fault {
	case KilledAfter:
		return unix.Kill(tr.pid, unix.SIGKILL)
	case NoMemory:
		return setResult(tr.pid, unix.ENOMEM)
	case NoBuffers:
		return setResult(tr.pid, unix.ENOBUFS)
	case HeldAfter:
		return tr.hold()
	}
	return nil
}

// holdTime is how long a program is held if nobody kills it.
const holdTime = time.Minute

func (tr *tracer) hold() error {
	pipe, err := os.OpenFile(filepath.Join(tr.dir, heldFile), os.O_WRONLY, 0)
	if err == nil {
		_, err = pipe.Write([]byte{1})
	}
	if err != nil {
		return err
	}
	<-time.After(holdTime)
	return fmt.Errorf("nobody killed it within %v", holdTime)
}

// die ends this process by a signal.
func die(signal syscall.Signal) error {
	if err := unix.Kill(os.Getpid(), signal); err != nil {
		return err
	}
	<-time.After(holdTime)
	return fmt.Errorf("%v did not end the stand-in", signal)
}
