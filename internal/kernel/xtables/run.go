package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/process"
)

// A Variant is one of the two sets of programs, each with its own rules in the kernel. The zero value is neither.
type Variant uint8

// The variants.
const (
	NFT Variant = iota + 1
	Legacy
)

// String returns the word in the programs' names: "nft" or "legacy".
func (v Variant) String() string { return [...]string{"auto", "nft", "legacy"}[v] }

// Program returns the name of a program: "ip6tables-nft-save" for the verb "save", "iptables-nft" without a verb.
func Program(v Variant, is4 bool, verb string) string {
	name := "ip6tables-" + v.String()
	if is4 {
		name = "iptables-" + v.String()
	}
	if verb != "" {
		name += "-" + verb
	}
	return name
}

// Deadline is how long one program may run. iptables-nft-save takes minutes at 50,000 Services, because it compares
// each chain with each other chain. A program that takes longer than Deadline hangs.
const Deadline = 15 * time.Minute

// idle is how long a program may use no CPU before it counts as hung. It is longer than lockWait, and much shorter than
// the time after which the agent's loop counts as hung and the agent restarts.
var idle = time.Minute

// lockWait is how many seconds iptables waits for the lock that its programs share.
const lockWait = "30"

// Save reads all rules of a variant and a family and calls f for each line. If the kernel has no tables of
// iptables-legacy, there are no lines: the program would make the kernel load the tables.
func Save(ctx context.Context, v Variant, is4 bool, f func(Line)) error {
	if v == Legacy {
		if there, err := LegacyTables(is4); err != nil || !there {
			return err
		}
	}
	return run(ctx, nil, func(out io.Reader) error { return Scan(out, f) }, Program(v, is4, "save"))
}

// SaveChain calls f for each line of one chain. A missing chain is an error.
func SaveChain(ctx context.Context, v Variant, is4 bool, table, chain string, f func(Line)) error {
	head := strings.NewReader("*" + table + "\n")
	read := func(out io.Reader) error { return Scan(io.MultiReader(head, out), f) }
	return run(ctx, nil, read, Program(v, is4, ""), "-t", table, "-S", chain)
}

// Restore applies text. Each COMMIT ends a transaction. Chains that the text does not name stay as they are.
func Restore(ctx context.Context, v Variant, is4 bool, text string) error {
	return run(ctx, strings.NewReader(text), nil, Program(v, is4, "restore"), "--noflush", "-w", lockWait)
}

// LegacyTables reports whether the network namespace of this thread has tables of iptables-legacy.
func LegacyTables(is4 bool) (bool, error) {
	file := "/proc/thread-self/net/ip6_tables_names"
	if is4 {
		file = "/proc/thread-self/net/ip_tables_names"
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the kernel has no iptables-legacy
	}
	if err != nil {
		return false, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	return len(bytes.TrimSpace(text)) > 0, nil
}

// Installed returns an error if a program is not installed.
func Installed(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("find program: %w [apt-get install iptables]", err)
	}
	return nil
}

// run runs a program in the network namespace of this thread. read may be nil; it gets the program's output.
func run(ctx context.Context, stdin io.Reader, read func(io.Reader) error, name string, args ...string) error {
	if err := Installed(name); err != nil {
		return err
	}
	ctx, end := context.WithTimeout(ctx, Deadline)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = stdin
	cmd.WaitDelay = time.Second // a child of the program may keep a pipe open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var out io.Reader
	if read != nil {
		var err error
		if out, err = cmd.StdoutPipe(); err != nil {
			return fmt.Errorf("run %s: %w", name, err)
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", name, err)
	}
	go watch(ctx, cmd.Process.Pid, cancel)
	var readErr error
	if read != nil {
		if readErr = read(out); readErr != nil {
			cancel(nil) // otherwise the program would wait until somebody reads its output
		}
	}
	err := cmd.Wait()
	switch {
	case readErr != nil && !errors.Is(readErr, os.ErrClosed):
		return fmt.Errorf("run %s: %w", name, readErr)
	case err == nil:
		return nil
	case ctx.Err() != nil: // err says only that the program was killed
		err = context.Cause(ctx)
	}
	if printed := strings.FieldsFunc(stderr.String(), func(r rune) bool { return r == '\n' }); len(printed) > 0 {
		err = fmt.Errorf("%w: %s", err, strings.Join(printed, "; "))
	}
	return fmt.Errorf("run %s: %w [%s]", name, err, advice(err))
}

// errIdle is the reason for ending a program that hangs.
var errIdle = errors.New("it does nothing")

// watch ends a program that uses no CPU for too long. It returns when ctx ends. A program that waits for a CPU does not
// count as idle.
func watch(ctx context.Context, pid int, end context.CancelCauseFunc) {
	const looks = 6 // without CPU use, until the program counts as hung
	tick := time.NewTicker(idle / looks)
	defer tick.Stop()
	last, same := "", 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, runs := process.Spent(pid)
		if now != last || runs {
			last, same = now, 0
		} else if same++; same >= looks {
			end(fmt.Errorf("%w for %v (%s)", errIdle, idle, process.Doing(pid)))
			return
		}
	}
}

// advice returns what may help against an error of a program.
func advice(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errIdle) {
		return "the node is overloaded, another program keeps the lock of iptables, or the kernel hangs: see its log"
	}
	if errors.Is(err, context.Canceled) {
		return "the agent ends"
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		return "the node or the container is out of memory: see the kernel's log"
	}
	return "needs root and a kernel with nf_tables or ip_tables, and memory"
}
