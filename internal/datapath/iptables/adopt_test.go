package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// countRuns puts a script before each program in names. The result tells how often a program has run.
func countRuns(t *testing.T, names ...string) (runs func(program string) int) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "runs")
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\necho %s >> %s\nexec %s \"$@\"\n", name, log, path)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func(program string) int {
		text, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(strings.Fields(string(text)), func(name string) bool { return name != program }))
	}
}

// saves returns the names of the programs that print all rules or one chain.
func saves() (names []string) {
	for _, is4 := range []bool{true, false} {
		for _, v := range []Variant{NFT, Legacy} {
			names = append(names, xtables.Program(v, is4, "save"), xtables.Program(v, is4, ""))
		}
	}
	return names
}

// TestReadsOnce: a process that adopts and syncs reads the kernel once, if no other program writes in between. It reads
// iptables-nft's rules over netlink, without a program.
func TestReadsOnce(t *testing.T) {
	for _, v := range []Variant{NFT, Legacy, Auto} {
		t.Run(v.String(), func(t *testing.T) {
			testnet.Enter(t)
			table := cluster(5).Table(settings())
			sync(t, open(t, v), table)
			runs := countRuns(t, saves()...)
			d := open(t, v)
			adopted, err := d.Adopt(t.Context())
			if err != nil || !adopted.Found || len(service.Diff(adopted.Table, table)) > 0 {
				t.Errorf("adopted %v (%v)", adopted, err)
			}
			stats, err := d.Sync(t.Context(), table)
			if err != nil || stats.Added+stats.Deleted > 0 {
				t.Errorf("the first Sync wrote: %+v (%v)", stats, err)
			}
			for _, name := range saves() {
				want := 0
				if v == Legacy && strings.HasSuffix(name, "-legacy-save") {
					want = 1
				}
				if runs(name) != want {
					t.Errorf("%s ran %d times", name, runs(name))
				}
			}
			if want := map[Variant]int{NFT: 4, Auto: 4}[v]; d.reader.Tables != want {
				t.Errorf("read %d tables over netlink, want %d: nat and filter of two families", d.reader.Tables, want)
			}
		})
	}
}

// TestAdoptIsOld: the first Sync finds a change by another program since Adopt.
func TestAdoptIsOld(t *testing.T) {
	testnet.Enter(t)
	table := cluster(5).Table(settings())
	sync(t, open(t, NFT), table)
	d := open(t, NFT)
	if _, err := d.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	other(t, "iptables-nft -t nat -D KUBE-SERVICES 2")
	if stats, err := d.Sync(t.Context(), table); err != nil || stats.Added == 0 {
		t.Errorf("the first Sync repaired nothing: %+v (%v)", stats, err)
	}
	(&scene{t, nil, d}).known("after the first Sync")
}

// TestContexts: no function reads the kernel after its context has ended.
func TestContexts(t *testing.T) {
	testnet.Enter(t)
	d, table := open(t, NFT), cluster(5).Table(settings())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Adopt(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Adopt: %v", err)
	}
	if _, err := d.Sync(ended, table); !errors.Is(err, context.Canceled) {
		t.Errorf("Sync: %v", err)
	}
	sync(t, d, table)
	other(t, "iptables-nft -t nat -D KUBE-SERVICES 2")
	d.nextRead = time.Time{}
	if _, err := d.Check(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Check: %v", err)
	}
	if _, err := d.Explain(ended, service.Key{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Explain: %v", err)
	}
	if check(t, d) {
		t.Error("a Check whose context had ended took damage for known")
	}
	if err := d.Cleanup(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Cleanup: %v", err)
	}
}
