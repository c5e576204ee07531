package childfault

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) {
	Main()
	testnet.Main(m)
}

// load runs nft, which makes a table.
func load(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "nft", "add table inet tested")
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
}

// tables lists the kernel's tables.
func tables(t *testing.T, nft string) string {
	t.Helper()
	out, err := exec.Command(nft, "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestFaults: each fault at each step has the effect of its name, and leaves nothing behind.
func TestFaults(t *testing.T) {
	testnet.NeedRoot(t, "makes network namespaces")
	runtime.LockOSThread() // the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	p := Intercept(t, "nft", "not-installed")
	if err := load(t.Context()); err != nil || tables(t, nft) != "table inet tested" {
		t.Fatalf("without a fault: tables %q, error %v", tables(t, nft), err)
	}
	steps := p.Steps()
	if last := len(steps) - 1; last < 1 || steps[0].String() != "nft sendto" || steps[0].Changes || steps[last].String() != "nft sendmsg" || !steps[last].Changes {
		t.Fatalf("steps %v", steps)
	}
	for _, f := range All() {
		for _, step := range []int{1, len(steps), len(steps) + 1} {
			if out, err := exec.Command(nft, "flush", "ruleset").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			p.Arm(step, f)
			err := p.Run(t.Context(), load)
			done := step > len(steps) || step == len(steps) && (f == KilledAfter || f == HeldAfter)
			switch fails := f == NoMemory || f == NoBuffers; {
			case fails && step == 1: // nft may ask again
				continue
			case step > len(steps):
				if err != nil {
					t.Errorf("%v no step: %v", f, err)
				}
			default:
				check(t, f, err)
			}
			if is := tables(t, nft) != ""; is != done {
				t.Errorf("%v step %d: there is a table: %v", f, step, is)
			}
			if left := p.Left(); left != nil {
				t.Errorf("%v step %d: %v runs on", f, step, left)
			}
		}
	}
}

// check compares the error of a program with the expected effect of a fault.
func check(t *testing.T, f Fault, err error) {
	t.Helper()
	var exit *exec.ExitError
	killed := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL
	want := map[Fault]bool{
		KilledBefore: killed, KilledAfter: killed,
		HeldBefore: errors.Is(err, context.DeadlineExceeded), HeldAfter: errors.Is(err, context.DeadlineExceeded),
		NoMemory:  err != nil && strings.Contains(err.Error(), "Cannot allocate memory"),
		NoBuffers: err != nil && strings.Contains(err.Error(), "No buffer space available"),
	}
	if !want[f] {
		t.Errorf("%v a step: %v", f, err)
	}
}

// TestDiffers: the omitted faults leave the same state as other faults. They are a program that ends in the middle of
// its questions, and answers in the middle of a long answer.
func TestDiffers(t *testing.T) {
	call := func(name string, pid int, changes bool) Step {
		return Step{Program: "nft", Call: name, pid: pid, Changes: changes}
	}
	steps := []Step{
		call("sendto", 1, false), call("recvmsg", 1, false), call("recvmsg", 1, false), call("recvmsg", 1, false), call("recvmsg", 1, false),
		call("sendmsg", 1, true), call("recvmsg", 1, false),
		call("sendto", 2, false),
	}
	for i, want := range []string{
		"killed before, ENOMEM at, ENOBUFS at, held before", "ENOMEM at, ENOBUFS at", "ENOMEM at, ENOBUFS at", "",
		"killed after, ENOMEM at, ENOBUFS at, held after",
		"killed before, killed after, ENOMEM at, ENOBUFS at, held before, held after",
		"killed before, killed after, ENOMEM at, ENOBUFS at, held before, held after",
		"killed before, killed after, ENOMEM at, ENOBUFS at, held before, held after",
	} {
		var has []string
		for _, f := range All() {
			if differs(steps, i, f) {
				has = append(has, f.String())
			}
		}
		if got := strings.Join(has, ", "); got != want {
			t.Errorf("step %d, %v: %s, want %s", i+1, steps[i], got, want)
		}
	}
	for text, want := range map[string][3]any{
		"": {0, 0, false}, "all": {1, 1, false}, "all:2/4": {2, 4, false}, "every": {1, 1, true}, "every:1/2": {1, 2, true},
	} {
		if n, of, every := part(text); [3]any{n, of, every} != want {
			t.Errorf("%q is read as %d/%d, %v", text, n, of, every)
		}
	}
}
