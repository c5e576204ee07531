package nft

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// TestEnded: with a context that has ended, all functions return at once and change nothing.
func TestEnded(t *testing.T) {
	table, p := open(t)
	must(t, table.Commit(t.Context(), nil, []Write{number(1)}))
	w := table.Watch()
	must(t, w.Begin(t.Context()))
	before := list(t, "table inet tested")
	expired, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	add := func(c *nftables.Conn) (bool, error) { c.AddChain(table.Chain("way-9")); return true, nil }
	for ctx, want := range map[context.Context]error{expired: context.DeadlineExceeded, cancelled: context.Canceled} {
		for name, f := range map[string]func() error{
			"Elements":   func() error { return table.Elements(ctx, "numbers", func(Element) error { return nil }) },
			"Intervals":  func() error { _, err := table.Intervals(ctx, "nets"); return err },
			"Prefixes":   func() error { _, err := table.Prefixes(ctx, "nets"); return err },
			"Links":      func() error { _, err := table.Links(ctx, "links"); return err },
			"Chains":     func() error { _, err := table.Chains(ctx); return err },
			"Generation": func() error { _, err := table.Generation(ctx); return err },
			"Commit":     func() error { return table.Commit(ctx, nil, []Write{number(2)}) },
			"prepared":   func() error { return table.Commit(ctx, add, nil) },
			"Run":        func() error { return table.Run(ctx, "add chain inet tested more") },
			"Try":        func() error { return Try(ctx, "add chain inet tested more") },
			"Declare":    func() error { _, err := table.Declare(ctx, p); return err },
			"Load":       func() error { _, err := table.Load(ctx, p, true); return err },
			"Prune":      func() error { return table.Prune(ctx, p) },
			"Delete":     func() error { return table.Delete(ctx) },
			"Probe":      func() error { return table.Probe(ctx) },
			"Begin":      func() error { return table.Watch().Begin(ctx) },
			"End":        func() error { return w.End(ctx, true) },
			"EndChains":  func() error { return w.EndChains(ctx, []string{"input"}, nil) },
			"Look":       func() error { _, _, err := w.Look(ctx); return err },
			"Settled":    func() error { _, err := w.Settled(ctx); return err },
		} {
			if err := f(); !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", name, err, want)
			}
		}
	}
	if after := list(t, "table inet tested"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	// The sockets hold no unread answers.
	must(t, table.Commit(t.Context(), nil, []Write{number(2)}))
	if got, err := table.numbers(t.Context()); err != nil || len(got) != 2 {
		t.Errorf("elements %v, error %v", got, err)
	}
}

// TestHangs: if nft does not end and is killed, the error describes its last activity.
func TestHangs(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\necho begun >&2\nexec sleep 1000\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := Try(ctx, "")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "(state ") {
		t.Errorf("error %v", err)
	}
}

// TestCancelDump: a dump in progress ends with its context.
func TestCancelDump(t *testing.T) {
	table, _ := open(t)
	const many = 100000
	ws := make([]Write, many)
	for i := range ws {
		ws[i] = number(i)
		ws[i].Comment = ""
	}
	must(t, table.Commit(t.Context(), nil, ws))
	// The context ends between two elements.
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	err := table.Elements(ctx, "numbers", func(Element) error { seen++; cancel(); return nil })
	if !errors.Is(err, context.Canceled) || seen == 0 || seen == many {
		t.Errorf("after %d elements: error %v", seen, err)
	}
	// The context ends somewhere in the dump.
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	dumped := 0
	for err = nil; err == nil; dumped++ {
		if dumped == 1 {
			go cancel()
		}
		err = table.Elements(ctx, "numbers", func(Element) error { return nil })
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("dump %d: error %v", dumped, err)
	}
	// The next request gets its own answer.
	seen = 0
	must(t, table.Elements(t.Context(), "numbers", func(Element) error { seen++; return nil }))
	if seen != many {
		t.Errorf("%d elements, want %d", seen, many)
	}
}

// TestSilentKernel: a commit that the kernel does not answer ends with its context. The kernel accepts a message NOOP
// and sends no answer.
func TestSilentKernel(t *testing.T) {
	table, _ := open(t)
	must(t, table.openWrite())
	silent := make([]netlink.Message, 3)
	for i := range silent {
		silent[i].Header.Type = unix.NLMSG_NOOP
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go cancel(context.DeadlineExceeded)
	if err := table.send(ctx, silent); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	table.Close()
	must(t, table.Commit(t.Context(), nil, []Write{number(1)}))
}
