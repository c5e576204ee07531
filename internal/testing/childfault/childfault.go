package childfault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Fault is the event at a step.
type Fault uint8

// The faults. Before: the kernel does not get the call. After: the kernel has executed the call.
const (
	KilledBefore Fault = iota // by SIGKILL
	KilledAfter
	NoMemory  // the call fails with ENOMEM
	NoBuffers // the call fails with ENOBUFS
	HeldBefore
	HeldAfter // the call does not return, so the program must be killed
	faults
)

// String describes the fault.
func (f Fault) String() string {
	return [...]string{"killed before", "killed after", "ENOMEM at", "ENOBUFS at", "held before", "held after"}[f]
}

// All returns all faults.
func All() (all []Fault) {
	for f := range faults {
		all = append(all, f)
	}
	return all
}

// A Step is one system call of a program.
type Step struct {
	Program, Call string
	// Changes says that the call may change rules in the kernel.
	Changes bool
	pid     int
}

// String returns the program and the call.
func (s Step) String() string { return s.Program + " " + s.Call }

// environment is the name of the variable with the directory of the stand-ins.
const environment = "FAIRWAY_CHILDFAULT"

// Files in that directory.
const (
	planFile  = "plan"  // the number of the step, and the fault
	stepsFile = "steps" // a line for each step
	heldFile  = "held"  // a pipe that says that a program is held
)

// Programs are the stand-ins of some programs, for one test.
type Programs struct {
	t    testing.TB
	dir  string
	path string // PATH without the stand-ins
	held *os.File
}

// Intercept puts a stand-in before each installed program of names, and counts the programs' steps from now on.
func Intercept(t testing.TB, names ...string) *Programs {
	t.Helper()
	p := &Programs{t: t, dir: t.TempDir(), path: os.Getenv("PATH")}
	self, err := os.Executable()
	p.must(err)
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			p.must(os.Symlink(self, filepath.Join(p.dir, name)))
		}
	}
	p.must(unix.Mkfifo(filepath.Join(p.dir, heldFile), 0o600))
	p.held, err = os.OpenFile(filepath.Join(p.dir, heldFile), os.O_RDWR, 0)
	p.must(err)
	t.Cleanup(func() { _ = p.held.Close() })
	t.Setenv(environment, p.dir)
	t.Setenv("PATH", p.path) // restored when the test ends
	p.Arm(0, KilledBefore)
	return p
}

func (p *Programs) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("stand-ins for programs: %v", err)
	}
}

// Arm counts steps from 1 again, and prepares a fault for one step. Step 0 prepares no fault.
func (p *Programs) Arm(step int, f Fault) {
	p.t.Helper()
	p.must(os.WriteFile(filepath.Join(p.dir, stepsFile), nil, 0o600))
	p.must(os.WriteFile(filepath.Join(p.dir, planFile), fmt.Appendf(nil, "%d %d", step, f), 0o600))
	p.must(os.Setenv("PATH", p.dir+":"+p.path))
}

// Disarm lets the programs run without stand-ins.
func (p *Programs) Disarm() {
	p.t.Helper()
	p.must(os.Setenv("PATH", p.path))
}

// Run calls f with a context. The context ends when a program is held, as if its deadline were over.
func (p *Programs) Run(ctx context.Context, f func(context.Context) error) error {
	p.t.Helper()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := p.held.Read(make([]byte, 1)); err == nil {
			cancel(context.DeadlineExceeded)
		}
	}()
	err := f(ctx)
	p.must(p.held.SetReadDeadline(time.Unix(1, 0)))
	<-done
	p.must(p.held.SetReadDeadline(time.Time{}))
	return err
}

// Steps returns the steps since Arm.
func (p *Programs) Steps() (all []Step) {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.dir, stepsFile))
	p.must(err)
	for line := range strings.Lines(string(text)) {
		var s Step
		_, err := fmt.Sscan(line, &s.Program, &s.pid, &s.Call, &s.Changes)
		p.must(err)
		all = append(all, s)
	}
	return all
}

// endTime is how long a killed program may take to end.
const endTime = 10 * time.Second

// Left returns the programs that took a step since Arm and still run.
func (p *Programs) Left() (left []Step) {
	p.t.Helper()
	seen := map[int]bool{}
	until := time.Now().Add(endTime)
	for _, s := range p.Steps() {
		if seen[s.pid] {
			continue
		}
		seen[s.pid] = true
		for runs(s.pid) {
			if time.Now().After(until) {
				left = append(left, s)
				break
			}
			time.Sleep(time.Millisecond) // poll
		}
	}
	return left
}

// runs reports whether a process exists and is no zombie.
func runs(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false
	}
	_, state, _ := strings.Cut(string(text), ") ")
	return err != nil || !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// everything is the name of the variable that makes Each try all faults. Its value is "all", or a part of them for
// parallel runs, for example "all:2/4". "every" also tries the faults that differs leaves out.
const everything = "FAIRWAY_FAULTS"

// part parses that variable. It returns 0, 0 for a sample.
func part(text string) (n, of int, every bool) {
	which, rest, parts := strings.Cut(text, ":")
	switch {
	case which != "all" && which != "every":
		return 0, 0, false
	case !parts:
		return 1, 1, which == "every"
	}
	if _, err := fmt.Sscanf(rest, "%d/%d", &n, &of); err != nil || n < 1 || n > of {
		panic(fmt.Sprintf("%s=%q: want all, or a part such as all:2/4", everything, text))
	}
	return n, of, which == "every"
}

// differs reports whether a fault at a step leaves another state than the fault at the steps around it. A killed or
// held program leaves the state of the kernel at that time. So between two changes of rules the first and the last
// question count, but none in the middle. If the program reads several answers in a row, a failure of each in the
// middle is equal.
func differs(steps []Step, i int, f Fault) bool {
	s := steps[i]
	if s.Changes {
		return true
	}
	like := func(j int) bool { return j >= 0 && j < len(steps) && steps[j].pid == s.pid && !steps[j].Changes }
	same := func(j int) bool { return like(j) && steps[j].Call == s.Call }
	switch f {
	case KilledBefore, HeldBefore:
		return !like(i - 1)
	case KilledAfter, HeldAfter:
		return !like(i + 1)
	}
	return !same(i-1) || !same(i+1) || !same(i-2)
}

// A Sample says which steps and faults a test has time for.
type Sample struct {
	Changes int // number of faults at each step that changes rules: 1 to 4
	Asks    int // one fault at every Asks-th step that only asks; 0: none
}

// faults returns the faults to try at a step. n is the number of the step among those that change rules, or among those
// that ask.
func (sample Sample) faults(s Step, n int) []Fault {
	switch {
	case s.Changes:
		return [][]Fault{{KilledBefore, HeldAfter, KilledAfter, NoMemory}, {KilledAfter, NoBuffers, KilledBefore, HeldBefore}}[n%2][:sample.Changes]
	case sample.Asks > 0 && n%sample.Asks == 0:
		return []Fault{Fault(n/sample.Asks) % faults}
	}
	return nil
}

// Each calls try for steps since Arm and faults of the sample. FAIRWAY_FAULTS=all makes it try all faults at all steps
// where they differ, which takes minutes. The name is for messages: "killed before step 7, nft sendmsg".
func (p *Programs) Each(sample Sample, try func(name string, step int, f Fault)) {
	p.t.Helper()
	mine, parts, every := part(os.Getenv(everything))
	steps, count, tries := p.Steps(), map[bool]int{}, 0
	for i, s := range steps {
		count[s.Changes]++
		some := sample.faults(s, count[s.Changes])
		if parts > 0 {
			some = slices.DeleteFunc(All(), func(f Fault) bool { return !every && !differs(steps, i, f) })
		}
		for _, f := range some {
			if tries++; parts == 0 || tries%parts == mine-1 {
				try(fmt.Sprintf("%v step %d, %v", f, i+1, s), i+1, f)
			}
		}
	}
	p.t.Logf("%d faults at %d steps", tries, len(steps))
}

// Asks reports whether the fault only makes a question fail. The program may ask again, or not need the answer, so it
// may succeed.
func (s Step) Asks(f Fault) bool { return !s.Changes && (f == NoMemory || f == NoBuffers) }
