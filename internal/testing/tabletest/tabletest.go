// Package tabletest removes tables of nf_tables and measures when their owner has written them again.
//
//	Start: Monitor in the namespace ── hint ─→ owner ─→ kernel
//	Flush: nft flush ruleset ─→ kernel; compare the table until it is there again
//
// It promises that the Monitor has ended when the test ends.
package tabletest

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// An Enter runs a function in a network namespace.
type Enter func(func() error) error

// Start runs the Monitor in a namespace until the test ends.
func Start(t *testing.T, enter Enter, m *nft.Monitor) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done, ready := make(chan error, 1), m.Changed("tabletest")
	go func() { done <- enter(func() error { return m.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the Monitor ended: %v", err)
		}
	})
	<-ready
}

// limit is the promised time until a table is there again. patience is the time that a loaded machine may take.
const limit, patience, rounds = time.Second, 20 * time.Second, 5

// Flush waits for a table of family inet, and removes it several times, each time together with all other tables. The
// owner must write it again with the same contents, most times within the promised time.
func Flush(t *testing.T, enter Enter, table string) {
	t.Helper()
	want := settle(t, enter, table)
	var took []time.Duration
	for range rounds {
		run(t, enter, "flush", "ruleset")
		start, got := time.Now(), ""
		for got != want {
			if time.Since(start) > patience {
				t.Fatalf("%v after a flush the table %s has %d bytes, want the %d bytes from before", patience, table, len(got), len(want))
			}
			time.Sleep(5 * time.Millisecond)
			got = list(t, enter, table)
		}
		took = append(took, time.Since(start))
		settle(t, enter, "")
	}
	if slices.Sort(took); took[rounds/2] > limit {
		t.Errorf("table %s was written again after %v, want the median within %v", table, took, limit)
	}
}

// settle waits until nobody has written for a while, because the owner may write other tables too. It returns the table.
func settle(t *testing.T, enter Enter, table string) (text string) {
	t.Helper()
	previous := "none"
	for end := time.Now().Add(patience); text == "" || text != previous; {
		if time.Now().After(end) {
			t.Fatalf("%v: table %q is not there, or changes all the time", patience, table)
		}
		time.Sleep(limit / 4)
		previous, text = text, list(t, enter, table)
	}
	return text
}

// list returns the words of the table in order, without its counters, or "" if it does not exist. The kernel lists
// chains and elements in any order. Without a name list returns all tables.
func list(t *testing.T, enter Enter, table string) (text string) {
	t.Helper()
	_ = enter(func() error {
		args := []string{"--stateless", "list", "ruleset"}
		if table != "" {
			args = []string{"--stateless", "list", "table", "inet", table}
		}
		out, err := exec.CommandContext(t.Context(), "nft", args...).Output()
		words := strings.FieldsFunc(string(out), func(r rune) bool { return unicode.IsSpace(r) || r == ',' })
		slices.Sort(words)
		text = strings.Join(words, " ")
		return err // there is no such table
	})
	return text
}

func run(t *testing.T, enter Enter, args ...string) {
	t.Helper()
	err := enter(func() error {
		out, err := exec.CommandContext(t.Context(), "nft", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft %v: %w: %s", args, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
