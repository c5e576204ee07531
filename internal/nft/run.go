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

	fwnetlink "github.com/fairway-net/fairway/internal/netlink"
)

// Run runs the program nft on text, in one transaction.
func (t *Table) Run(ctx context.Context, text string) error {
	if err := t.mayWrite(); err != nil {
		return err
	}
	return t.run(ctx, text)
}

func (t *Table) run(ctx context.Context, text string) error {
	return t.count(ctx, 1, func() error { return command(ctx, io.Discard, text, "-f", "-") })
}

// count calls run, which starts a program that makes n transactions in our name.
func (t *Table) count(ctx context.Context, n uint32, run func() error) error {
	from, err := t.Generation(ctx)
	if err != nil {
		return err
	}
	l := t.ledger
	runs := l.begin(t.origin, from, n)
	failed := run()
	to, err := t.Generation(ctx)
	l.end(ctx, runs, to, failed != nil || err != nil)
	return failed // a Watch finds out which changes these generations were
}

// Try makes the kernel check text as Run would load it, and changes nothing.
func Try(ctx context.Context, text string) error {
	return command(ctx, io.Discard, text, "-c", "-f", "-")
}

// stopAfter is how long the program nft may run after it was killed.
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
	err = cmd.Run()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("nft: %w", context.Cause(ctx))
	}
	if err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return fmt.Errorf("nft: %w: %s [needs root and a kernel with nf_tables, 5.13 or later]", err, line)
	}
	return nil
}

// Probe reports why a table cannot work here: no privileges, no nf_tables, no nft. It
// changes nothing.
func (t *Table) Probe(ctx context.Context) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return errNoNFT
	}
	_, _, err := t.reader.Table(ctx, Inet, t.name)
	return err
}

var errNoNFT = errors.New("the program nft is not installed [apt-get install nftables]")
