package testnet

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
)

// Main is a package's TestMain. It runs the tests, and fails if goroutines or file descriptors are left, or rules of
// ours outside of the tests' namespaces. A leaked namespace is a leaked descriptor. Main also prints the
// number of tests that were skipped because the process is not root.
func Main(m *testing.M) { os.Exit(run(m, os.Stderr)) }

func run(m interface{ Run() int }, out io.Writer) int {
	before, rules := descriptors(), ourTables()
	code := m.Run()
	reportLeftOut(out)
	if code != 0 || fuzzing() {
		return code
	}
	left := leaks(before, 5*time.Second)
	if now := ourTables(); !slices.Equal(now, rules) {
		left += fmt.Sprintf("rules in the machine's own network namespace: tables %q, before %q\n", now, rules)
	}
	if left != "" {
		fmt.Fprintf(out, "FAIL: all tests passed, but they left behind:\n%s", left)
		return 1
	}
	return 0
}

// ourTables returns the nf_tables tables of Fairway in the network namespace of the process. There should be none,
// unless an agent runs there. It returns none without the right to read them.
func ourTables() (names []string) {
	conn, err := nftables.New()
	if err != nil {
		return nil
	}
	all, err := conn.ListTables()
	if err != nil {
		return nil
	}
	for _, t := range all {
		if strings.HasPrefix(t.Name, "fairway") {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}

// fuzzing reports whether this is the fuzzing engine, which has a goroutine for signals.
func fuzzing() bool {
	f := flag.Lookup("test.fuzz")
	return f != nil && f.Value.String() != ""
}

// leaks waits until no leak is left, or returns the leaks after a while.
func leaks(before map[string]string, patience time.Duration) string {
	deadline := time.Now().Add(patience)
	for {
		runtime.GC() // closes the runtime's pipes for splice, eventually
		left := leftDescriptors(before) + leftGoroutines()
		if left == "" || time.Now().After(deadline) {
			return left
		}
		time.Sleep(5 * time.Millisecond) // poll
	}
}

// leftGoroutines returns the stacks of all goroutines except the caller's.
func leftGoroutines() string {
	if runtime.NumGoroutine() == 1 {
		return ""
	}
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	return b.String()
}

// leftDescriptors returns a line for each open descriptor that was not open at the start.
func leftDescriptors(before map[string]string) string {
	var b strings.Builder
	for fd, what := range descriptors() {
		// The runtime opens its poller once, and os/exec its pidfd probe.
		if before[fd] != "" || strings.HasPrefix(what, "anon_inode:") {
			continue
		}
		fmt.Fprintf(&b, "descriptor %s -> %s\n", fd, what)
	}
	return b.String()
}

// descriptors returns a description of each open descriptor of this process.
func descriptors() map[string]string {
	const dir = "/proc/self/fd"
	all := map[string]string{}
	names, err := os.ReadDir(dir)
	if err != nil {
		return all
	}
	for _, n := range names {
		// ReadDir's own descriptor is already closed.
		if what, err := os.Readlink(filepath.Join(dir, n.Name())); err == nil {
			all[n.Name()] = what
		}
	}
	return all
}
