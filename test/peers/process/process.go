// Package process runs a program in a network namespace for as long as a test wants it.
//
//	Start ─ Namespace.Do ─→ program ─→ output (kept: its end is what a failure shows)
//	Stop  ─ SIGTERM, SIGKILL after 10 s ─→ gone
//
// The program is gone when Stop returns, and also when the test itself is killed with -9.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Process is a running program.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	out   tail
	done  chan struct{}
	err   error // the error of Wait, after done is closed
	Began time.Time
}

// Enter runs a function on a thread in the namespaces for the program: testnet.Namespace.Do. Nil means the present
// namespaces.
type Enter func(func() error) error

// Start starts argv.
func Start(enter Enter, name string, argv ...string) (*Process, error) {
	if enter == nil {
		enter = func(f func() error) error { return f() }
	}
	p := &Process{Name: name, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.Began = time.Now()
	if err := enter(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Alive returns nil while the program runs, and otherwise an error with the end of its output.
func (p *Process) Alive() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%v); its last words:\n%s", p.Name, p.err, p.out.String())
	default:
		return nil
	}
}

// Output returns the end of the program's output.
func (p *Process) Output() string { return p.out.String() }

// Stop ends the program.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		return fmt.Errorf("stop %s: %w", p.Name, p.err)
	}
	return nil
}

// Kill ends the program like a crash: the program cannot react.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Usage is the memory and CPU time of a program.
type Usage struct {
	RSS, PeakRSS int64         // bytes
	FileRSS      int64         // part of RSS: pages of the program's file and of other files
	CPU          time.Duration // includes the programs that it ran
}

// Usage returns the memory and CPU time so far.
func (p *Process) Usage() (Usage, error) {
	pid := p.cmd.Process.Pid
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("read memory of %s: %w", p.Name, err)
	}
	var u Usage
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			u.RSS = kb << 10
		case "RssFile:":
			u.FileRSS = kb << 10
		case "VmHWM:":
			u.PeakRSS = kb << 10
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("read CPU time of %s: %w", p.Name, err)
	}
	// proc(5): fields 14 to 17 are utime, stime, cutime, cstime in ticks of 10 ms.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for _, text := range f[11:15] {
		ticks, _ := strconv.ParseInt(text, 10, 64)
		u.CPU += time.Duration(ticks) * 10 * time.Millisecond
	}
	return u, nil
}

// tail keeps the end of the output.
type tail struct {
	mu   sync.Mutex
	data []byte
}

const keep = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if len(t.data) > 2*keep {
		t.data = append([]byte(nil), t.data[len(t.data)-keep:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
