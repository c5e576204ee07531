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

	"github.com/fairway-net/fairway/internal/testnet"
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

// tables are the tables that the kernel has.
func tables(t *testing.T, nft string) string {
	t.Helper()
	out, err := exec.Command(nft, "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestFaults: each fault at each step does what its name says, and nothing stays.
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

// check compares the error of a program with what a fault makes of it.
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
