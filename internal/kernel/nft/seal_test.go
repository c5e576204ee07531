package nft

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
)

// TestSeal: a process finds out that another program changed rules while no process of ours ran, and that a load was
// not finished. Changed counters are no change.
func TestSeal(t *testing.T) {
	table, p := open(t)
	sealed := func(when string, want bool) {
		t.Helper()
		next := New("tested")
		defer next.Close()
		if got, err := next.Sealed(t.Context(), p); err != nil || got != want {
			t.Errorf("%s: sealed %v, error %v, want %v", when, got, err, want)
		}
	}
	seal := func() {
		t.Helper()
		w := table.Watch()
		must(t, w.Begin(t.Context()))
		must(t, w.End(t.Context(), true))
		must(t, w.Seal(t.Context(), p))
		must(t, w.Seal(t.Context(), p))
		if c, _, err := w.Look(t.Context()); err != nil || c != Nothing {
			t.Errorf("after a seal there is change %v, error %v", c, err)
		}
	}
	sealed("loaded", false)
	seal()
	sealed("sealed", true)
	must(t, table.Commit(t.Context(), nil, []Write{number(7)}))
	sealed("another element", true)
	for _, change := range []string{
		"add rule inet tested input counter", "flush chain inet tested leaving", "add chain inet tested other",
		"insert rule inet tested input accept",
	} {
		if out, err := exec.Command("nft", strings.Fields(change)...).CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v: %s", change, err, out)
		}
		sealed(change, false)
		before := list(t, "table inet tested")
		if _, err := table.Load(t.Context(), p, true); err != nil {
			t.Fatal(err)
		}
		must(t, table.Prune(t.Context(), p))
		sealed(change+", loaded again", false)
		seal()
		sealed(change+", sealed again", true)
		if after := list(t, "table inet tested"); after == before {
			t.Errorf("nft %s was not undone:\n%s", change, after)
		}
	}
	must(t, table.Delete(t.Context()))
	sealed("without a table", false)
}

// TestSetCounts: Counts returns the number of elements, whether the kernel reports it or not.
func TestSetCounts(t *testing.T) {
	table, _ := open(t)
	short := number(1)
	short.Set, short.Data = "short", nil
	ws := append([]Write{number(1), number(2), number(3), short},
		ReplacePrefixes("nets", true, nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/3")})...)
	must(t, table.Commit(t.Context(), nil, append(ws, ReplaceLinks("links", nil, []string{"eth0", "fw+"})...)))
	must(t, table.Commit(t.Context(), nil, []Write{{Set: "numbers", Key: number(2).Key, Del: true}}))
	got, err := table.Counts(t.Context())
	must(t, err)
	for set, want := range map[string]int{"numbers": 2, "nets": 2, "links": 2, "old": 0, "counted": 0} {
		if n, there := got[set]; !there || n != want {
			t.Errorf("%s has %d elements (known: %v), want %d", set, n, there, want)
		}
	}
	if n, there := got["short"]; there {
		t.Errorf("a set whose elements expire is counted: %d", n)
	}
	for set := range got {
		n := 0
		must(t, table.Elements(t.Context(), set, func(e Element) error {
			if !e.End {
				n++
			}
			return nil
		}))
		if n != got[set] {
			t.Errorf("%s has %d elements, counted %d", set, n, got[set])
		}
	}
}
