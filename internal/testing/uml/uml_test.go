package uml_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/uml"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// run runs a shell command in the kernel.
func run(t *testing.T, ctx context.Context, virtual bool, script string) (status int, out string, err error) {
	t.Helper()
	needKernel(t)
	var b bytes.Buffer
	status, err = uml.Run(ctx, uml.Options{
		Program: "/bin/sh", Args: []string{"-c", script}, Dir: "/", Env: []string{"WORD=it's"},
		Output: &b, Virtual: virtual, MemMiB: 256,
	})
	t.Logf("%q: status %d, error %v, output:\n%s", script, status, err, b.String())
	return status, b.String(), err
}

// needKernel fails the test if there is no kernel. It skips the test for an ordinary user, who may not have built one.
func needKernel(t *testing.T) {
	t.Helper()
	if _, err := uml.Kernel(); err != nil {
		testnet.NeedRoot(t, "boots a kernel that is not built yet [make uml]")
		t.Fatal(err)
	}
}

// Run returns the program's output and status.
func TestRun(t *testing.T) {
	status, out, err := run(t, t.Context(), true, `echo "it is $WORD"; echo bad >&2; exit 42`)
	if err != nil || status != 42 || !strings.Contains(out, "it is it's\n") || !strings.Contains(out, "bad\n") {
		t.Errorf("status %d, error %v", status, err)
	}
}

// The kernel has features that the machine's kernel lacks, and no route to the outside.
func TestKernel(t *testing.T) {
	status, out, err := run(t, t.Context(), true, `cat /proc/net/ip_vs >/dev/null && ip -o link && ! touch /uml-was-here 2>/dev/null`)
	if err != nil || status != 0 {
		t.Errorf("status %d, error %v", status, err)
	}
	if strings.Contains(out, ": eth") {
		t.Error("the kernel has a network device")
	}
	if _, err := os.Stat("/uml-was-here"); err == nil {
		t.Error("the kernel could write to the host's files")
	}
}

// Virtual time does not wait.
func TestVirtual(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if status, _, err := run(t, ctx, true, "sleep 3600"); err != nil || status != 0 {
		t.Errorf("status %d, error %v", status, err)
	}
}

// A program that hangs is an error when the context ends, and is then gone.
func TestEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, _, err := run(t, ctx, false, "sleep 3600"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// A kernel that ends before the program has no status.
func TestDies(t *testing.T) {
	if _, _, err := run(t, t.Context(), true, "echo c >/proc/sysrq-trigger; halt -f -n -d; sleep 1"); err == nil {
		t.Error("no error")
	}
}

// No process outlives the process that started the kernel, even if that process is killed.
func TestKilled(t *testing.T) {
	if os.Getenv("UML_HANG") != "" {
		_, _, _ = run(t, t.Context(), false, "echo up; sleep 3600")
		return
	}
	needKernel(t)
	scratch := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestKilled$")
	cmd.Env = append(os.Environ(), "UML_HANG=yes", "TMPDIR="+scratch)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the kernel runs", func() bool { return len(kernels(t, scratch)) > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	await(t, "the kernel is gone", func() bool { return len(kernels(t, scratch)) == 0 })
}

// kernels returns the processes with a scratch directory below dir.
func kernels(t *testing.T, dir string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte("uml_dir="+dir)) {
			pids = append(pids, path)
		}
	}
	return pids
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); {
		if time.Now().After(end) {
			t.Fatalf("waited a minute until %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
