package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/kernel/process"
)

// Run runs the program nft with text as its input, in one transaction.
func (t *Table) Run(ctx context.Context, text string) error {
	if err := t.mayWrite(); err != nil {
		return err
	}
	return t.run(ctx, text)
}

func (t *Table) run(ctx context.Context, text string) error {
	return t.runAsOurs(ctx, 1, func() error { return command(ctx, io.Discard, text, "-f", "-") })
}

// runAsOurs calls run, which starts a program that makes n transactions, and enters them into the ledger.
func (t *Table) runAsOurs(ctx context.Context, n uint32, run func() error) error {
	from, err := t.Generation(ctx)
	if err != nil {
		return err
	}
	l := t.ledger
	runs := l.begin(t.origin, from, n)
	failure := run()
	to, err := t.Generation(ctx)
	l.end(ctx, runs, to, failure != nil || err != nil)
	return failure // an error of Generation only costs a Watch a comparison
}

// Try makes the kernel check a text without loading it.
func Try(ctx context.Context, text string) error {
	return command(ctx, io.Discard, text, "-c", "-f", "-")
}

// List returns a table as JSON in nft's schema, without the elements of sets and maps.
func List(ctx context.Context, f Family, table string) ([]byte, error) {
	var out bytes.Buffer
	err := command(ctx, &out, "", "-j", "-t", "list", "table", f.String(), table)
	return out.Bytes(), err
}

// PrintChain returns a chain as nft prints it, with the handles of its rules. nft also reads the elements of the table's
// sets: a third of a second at 50,000 Services.
func PrintChain(ctx context.Context, f Family, table, chain string) ([]byte, error) {
	return print(ctx, "list", "chain", f.String(), table, chain)
}

// PrintFamily returns all rules of a family as nft prints them, with their handles. It is faster than PrintChain for
// families with large sets and few rules, because nft reads no elements.
func PrintFamily(ctx context.Context, f Family) ([]byte, error) {
	return print(ctx, "list", "ruleset", f.String())
}

func print(ctx context.Context, args ...string) ([]byte, error) {
	var out bytes.Buffer
	err := command(ctx, &out, "", append([]string{"-t", "-a"}, args...)...)
	return out.Bytes(), err
}

// stopAfter is how long to wait for the end of nft after it was killed.
const stopAfter = 5 * time.Second

// command runs the program nft in the network namespace of the calling thread.
func command(ctx context.Context, stdout io.Writer, stdin string, args ...string) error {
	path, err := exec.LookPath("nft")
	if err != nil {
		return errNoNFT
	}
	ctx, cancel := fwnetlink.Bounded(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = stopAfter
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = stdout, &stderr
	doing := ""
	cmd.Cancel = func() error {
		doing = process.Doing(cmd.Process.Pid)
		return cmd.Process.Kill()
	}
	err = cmd.Run()
	if err != nil && ctx.Err() != nil {
		if err = context.Cause(ctx); doing != "" {
			err = fmt.Errorf("%w (%s)", err, doing)
		}
	}
	if err != nil {
		if line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n"); line != "" {
			err = fmt.Errorf("%w: %s", err, line)
		}
		return fmt.Errorf("nft: %w [%s]", err, advice(err))
	}
	return nil
}

// advice returns advice for an administrator about an error of nft.
func advice(err error) string {
	var exit *exec.ExitError
	text := strings.ToLower(err.Error())
	switch {
	case errors.Is(err, context.Canceled):
		return "the agent ends"
	case errors.Is(err, context.DeadlineExceeded):
		return "the node is overloaded or the kernel hangs: see its log"
	case errors.As(err, &exit) && !exit.Exited():
		return "the node or the container is out of memory: see the kernel's log"
	case strings.Contains(text, unix.ENOMEM.Error()), strings.Contains(text, unix.ENOBUFS.Error()):
		return "the kernel is out of memory"
	}
	return "needs root and a kernel with nf_tables, 5.13 or later"
}

// Probe reports why a table cannot work here: missing privileges, no nf_tables in the kernel, or no program nft. It
// changes nothing.
func (t *Table) Probe(ctx context.Context) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return errNoNFT
	}
	_, _, err := t.reader.Table(ctx, Inet, t.name)
	return err
}

var errNoNFT = errors.New("the program nft is not installed [apt-get install nftables]")
