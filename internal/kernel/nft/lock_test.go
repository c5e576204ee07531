package nft

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// lockEnv makes the test's program take a lock and wait for its end.
const lockEnv = "FAIRWAY_TEST_NFT_LOCK"

func lockUntilKilled() {
	_, err := Acquire(context.Background(), "lock")
	fmt.Println(err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// lockInChild starts a process that takes the lock in the network namespace of the calling thread.
func lockInChild(t *testing.T) (*exec.Cmd, error) {
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), lockEnv+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := child.StdinPipe()
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = stdin.Close() })
	stdout, err := child.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := child.Start(); err != nil {
		return nil, err
	}
	said := make([]byte, len("<nil>\n"))
	if _, err := io.ReadFull(stdout, said); err != nil || string(said) != "<nil>\n" {
		return nil, fmt.Errorf("the child says %q: %w", said, err)
	}
	return child, nil
}

// TestLock: one process of a network namespace has a lock. Nobody else can remove it, the lock ends with the process
// even by kill -9, and a table of its name that no process owns does not matter.
func TestLock(t *testing.T) {
	ns, other := testnet.NewNamespace(t, "node"), testnet.NewNamespace(t, "other")
	in := func(ns *testnet.Namespace, f func() error) {
		t.Helper()
		if err := ns.Do(f); err != nil {
			t.Fatal(err)
		}
	}
	child := &exec.Cmd{}
	in(ns, func() (err error) {
		if err := command(t.Context(), io.Discard, "add table inet lock\nadd chain inet lock restored\n", "-f", "-"); err != nil {
			return err
		}
		child, err = lockInChild(t)
		return err
	})
	in(ns, func() error {
		for range 2 {
			if _, err := Acquire(t.Context(), "lock"); !errors.Is(err, ErrLocked) {
				t.Errorf("a second lock: %v", err)
			}
			if err := command(t.Context(), io.Discard, "flush ruleset", "-f", "-"); err != nil {
				t.Error(err)
			}
			for _, text := range []string{"delete table inet lock", "table inet lock { flags owner; }"} {
				if err := command(t.Context(), io.Discard, text, "-f", "-"); err == nil || !strings.Contains(err.Error(), "not permitted") {
					t.Errorf("%s: %v", text, err)
				}
			}
		}
		free, err := Acquire(t.Context(), "other-name")
		if err != nil {
			return err
		}
		free.Release()
		return nil
	})
	in(other, func() error {
		l, err := Acquire(t.Context(), "lock")
		if err == nil {
			l.Release()
		}
		return err
	})
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	in(ns, func() error {
		for range 3 {
			l, err := Acquire(t.Context(), "lock")
			if err != nil {
				return err
			}
			l.Release()
		}
		return nil
	})
}

// TestNoLock: the error of a user without rights, and of a kernel without nf_tables, says so.
func TestNoLock(t *testing.T) {
	ns := testnet.NewNamespace(t, "node")
	err := ns.Do(func() (err error) {
		testnet.AsNobody(t, func() { _, err = Acquire(t.Context(), "lock") })
		return err
	})
	if !errors.Is(err, unix.EPERM) || errors.Is(err, ErrLocked) || !strings.HasSuffix(err.Error(), "[needs CAP_NET_ADMIN]") {
		t.Errorf("another user: %v", err)
	}
	failed := make(chan error)
	go func() {
		if err := onThreadWithoutNetfilter(); err != nil {
			failed <- err
			return
		}
		_, err := Acquire(t.Context(), "lock")
		failed <- err
	}()
	if err := <-failed; !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a kernel without nf_tables: %v", err)
	}
}
