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

// A Record identifies a process. The zero value is no process, and is not alive.
type Record struct {
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks since boot, field 22 of /proc/PID/stat
}

// Start starts cmd in its own session, appends its output to the file log, and does not wait for its end. The caller
// must be on the thread whose namespaces the process should have.
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
	// Even if the process has ended, its entry stays until Wait.
	started, _, err := readStat(cmd.Process.Pid)
	if err != nil {
		return Record{}, fmt.Errorf("start %s: %w", name, err)
	}
	r := Record{Name: name, PID: cmd.Process.Pid, Started: started}
	// The starter reaps the process. After the starter's end, init does.
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

// Stopped reports whether the process is alive and a signal has stopped it.
func (r Record) Stopped() bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.PID))
	if err != nil || !r.Alive() {
		return false
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	return len(fields) > 0 && fields[0] == "T"
}

// Terminate asks the process to end, and kills it after five seconds.
func (r Record) Terminate() error {
	if err := r.signal("terminate", unix.SIGTERM); err != nil || r.await() {
		return err
	}
	return r.Kill()
}

// Kill kills the process and waits up to about five seconds until it is gone. A process that has ended before is no
// error.
func (r Record) Kill() error { return KillAll([]Record{r}) }

// KillAll is Kill for several processes, which end at the same time. Most of a process's end is a wait for its inotify
// instances, which one worker of the kernel removes one by one.
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

// doing describes the process's state in the kernel, and the kernel function in which it waits.
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

// signal sends a signal if the process is alive.
func (r Record) signal(what string, signal unix.Signal) error {
	if !r.Alive() {
		return nil
	}
	if err := unix.Kill(r.PID, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%s %s (pid %d): %w", what, r.Name, r.PID, err)
	}
	return nil
}

// await waits until the process is gone, for five seconds of this program's own run time. On a machine that stops or
// starves this program, neither of the two processes makes progress, so that time does not count.
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

// Resident returns the process's resident memory in bytes.
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

// InNamespaces returns every process whose network namespace has one of the given inodes. It finds processes of a lab
// that have no record. It never returns the caller. If a goroutine that entered a namespace ends on the main thread,
// the Go runtime parks that thread in the namespace. /proc then shows the namespace as the whole process's.
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
			continue // the process has just ended
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

// startTime returns the start time of a process. A zombie counts as gone.
func startTime(pid int) (uint64, error) {
	started, state, err := readStat(pid)
	if err == nil && (state == "Z" || state == "X") {
		err = fmt.Errorf("read process: %w", os.ErrNotExist)
	}
	return started, err
}

// readStat returns the start time of a process and the letter of its state.
func readStat(pid int) (started uint64, state string, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", fmt.Errorf("read process: %w", err)
	}
	// The process name is in brackets, and may contain brackets and blanks. The next fields start after the last
	// closing bracket.
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
