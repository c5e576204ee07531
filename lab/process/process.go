package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Record is a process that can be recognised later. The zero value is no
// process, and is not alive.
type Record struct {
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// Start starts cmd in a session of its own, with its output appended to the
// file log, and returns without waiting for it. It must be called on the
// thread whose namespaces the process should have.
func Start(name, log string, cmd *exec.Cmd) (Record, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return Record{}, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return Record{}, fmt.Errorf("start %s: %w", name, err)
	}
	// It may have ended, but as long as nobody has waited for it, it is there.
	started, _, err := readStat(cmd.Process.Pid)
	if err != nil {
		return Record{}, fmt.Errorf("start %s: %w", name, err)
	}
	r := Record{Name: name, PID: cmd.Process.Pid, Started: started}
	// Reaped while the starter lives; afterwards init does it.
	go func() { _ = cmd.Wait() }()
	return r, nil
}

// Alive reports whether the process still runs.
func (r Record) Alive() bool {
	if r.PID == 0 {
		return false
	}
	started, err := startTime(r.PID)
	return err == nil && started == r.Started
}

// Stopped reports whether the process lives and was stopped by a signal.
func (r Record) Stopped() bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.PID))
	if err != nil || !r.Alive() {
		return false
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	return len(fields) > 0 && fields[0] == "T"
}

// Terminate asks the process to end, and ends it when it does not in five seconds.
func (r Record) Terminate() error {
	if err := r.signal("terminate", unix.SIGTERM); err != nil || r.await() {
		return err
	}
	return r.Kill()
}

// Kill ends the process at once and waits until it is gone, for some five
// seconds. It is no error if it was gone before.
func (r Record) Kill() error { return KillAll([]Record{r}) }

// KillAll is Kill of several processes, which end at the same time: each waits in the kernel, mostly for its instances of
// inotify, which a worker of the kernel removes one after the other.
func KillAll(all []Record) error {
	var failed []error
	for _, r := range all {
		failed = append(failed, r.signal("kill", unix.SIGKILL))
	}
	for _, r := range all {
		if !r.await() {
			failed = append(failed, fmt.Errorf("kill %s: pid %d is still there after 5s, %s", r.Name, r.PID, r.doing()))
		}
	}
	return errors.Join(failed...)
}

// doing is the state that the kernel has a process in, and where it waits there.
func (r Record) doing() string {
	state := "gone now"
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.PID)); err == nil {
		state = "in state " + strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))[0]
	}
	if at, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", r.PID)); err == nil {
		state += ", at " + string(at)
	}
	return state
}

// signal sends a signal, if the process is alive.
func (r Record) signal(what string, signal unix.Signal) error {
	if !r.Alive() {
		return nil
	}
	if err := unix.Kill(r.PID, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%s %s (pid %d): %w", what, r.Name, r.PID, err)
	}
	return nil
}

// await waits until the process is gone: for five seconds in which this one runs too. On a machine that stands still, or
// gives this process no turn, none of the two gets on.
func (r Record) await() (gone bool) {
	const pause = 5 * time.Millisecond
	for range 5 * time.Second / pause {
		if !r.Alive() {
			return true
		}
		time.Sleep(pause)
	}
	return !r.Alive()
}

// Resident is the process's resident memory in bytes.
func (r Record) Resident() (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", r.PID))
	if err != nil {
		return 0, fmt.Errorf("read memory of %s: %w", r.Name, err)
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0, fmt.Errorf("read memory of %s: short statm", r.Name)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read memory of %s: %w", r.Name, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// InNamespaces returns every process whose network namespace is one of the
// given inodes: those that a lab left behind without a record of them. The caller is never
// among them: where a goroutine that entered a namespace ends on the main thread, the Go
// runtime parks that thread in the namespace, and /proc shows it as the whole process'.
func InNamespaces(inodes map[uint64]string) ([]Record, error) {
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Record
	self := fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	for _, link := range links {
		var st unix.Stat_t
		if link == self || unix.Stat(link, &st) != nil {
			continue // ended meanwhile
		}
		name, ok := inodes[st.Ino]
		if !ok {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			continue
		}
		if started, err := startTime(pid); err == nil {
			found = append(found, Record{Name: "process in " + name, PID: pid, Started: started})
		}
	}
	return found, nil
}

// startTime reads when the process started; a zombie counts as gone.
func startTime(pid int) (uint64, error) {
	started, state, err := readStat(pid)
	if err == nil && (state == "Z" || state == "X") {
		err = fmt.Errorf("read process: %w", os.ErrNotExist)
	}
	return started, err
}

// readStat reads when the process started, and the letter of its state.
func readStat(pid int) (started uint64, state string, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", fmt.Errorf("read process: %w", err)
	}
	// The name is in brackets and may itself hold brackets and blanks: the
	// fields after it start behind the last closing one.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("read process: %w", os.ErrNotExist)
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("read process: %w", err)
	}
	return started, fields[0], nil
}
