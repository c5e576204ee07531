package nft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
)

// foreign runs the program nft without the ledger's knowledge.
func foreign(t testing.TB, text string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// other opens another Table in the namespace of open, with the same ruleset.
func other(t *testing.T, name string) *Table {
	t.Helper()
	table := New(name)
	t.Cleanup(table.Close)
	_, err := table.Load(t.Context(), &Ruleset{Source: first, Data: map[string]any{"Number": "0:1"}, DynamicChain: keep}, false)
	must(t, err)
	return table
}

// watched returns a begun Watch over the table.
func watched(t *testing.T, table *Table) *Watch {
	t.Helper()
	w := table.Watch()
	must(t, w.Begin(t.Context()))
	must(t, w.End(t.Context(), true))
	return w
}

func (w *Watch) finds(t *testing.T, when string, want Change) (accept func()) {
	t.Helper()
	got, accept, err := w.Look(t.Context())
	if err != nil || got != want {
		t.Errorf("%s: found %v, error %v, want %v", when, got, err, want)
	}
	return accept
}

// TestOtherTable: a Watch finds no change when another Table of this process writes in any way.
func TestOtherTable(t *testing.T) {
	table, p := open(t)
	two := other(t, "second")
	w := watched(t, table)
	for i := range 100 {
		must(t, two.Commit(t.Context(), nil, []Write{number(i)}))
	}
	w.finds(t, "after 100 commits", Nothing)
	for i, f := range []func() error{
		func() error { return two.Run(t.Context(), "add element inet second old { 10.0.0.1 }") },
		func() error { return two.Run(t.Context(), "table inet second {}") }, // changes nothing
		func() error { _, err := two.Load(t.Context(), p, true); return err },
		func() error {
			next := &Ruleset{Source: strings.Replace(second, "set nets", "set networks", 1), DynamicChain: keep}
			next.Source = strings.Replace(next.Source, "@nets", "@networks", 1)
			for range 2 {
				if _, err := two.Declare(t.Context(), next); err != nil {
					return err
				}
			}
			if _, err := two.Load(t.Context(), next, false); err != nil {
				return err
			}
			return two.Prune(t.Context(), next)
		},
		func() error {
			return two.Commit(t.Context(), nil, ReplacePrefixes("networks", true, nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}))
		},
		func() error { return two.Delete(t.Context()) },
		func() error { _, err := two.Load(t.Context(), p, false); return err },
	} {
		must(t, f())
		w.finds(t, fmt.Sprint("after step ", i), Nothing)
	}
	foreign(t, "add element inet second old { 10.0.0.9 }")
	w.finds(t, "after another program's write", Elements)
}

// TestRestore: the transactions of iptables-nft-restore count as our own, and no others.
func TestRestore(t *testing.T) {
	table, _ := open(t)
	w := watched(t, table)
	restore := func(text string) func() error {
		return func() error {
			cmd := exec.Command("iptables-nft-restore", "--noflush", "-w", "5")
			cmd.Stdin = strings.NewReader(text)
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		}
	}
	two := "*nat\n:X -\n-A X -j RETURN\nCOMMIT\n*filter\n:Y -\n-A Y -j RETURN\nCOMMIT\n"
	must(t, w.RunAsOurs(t.Context(), 2, restore(two)))
	w.finds(t, "after iptables-nft-restore", Nothing)
	must(t, w.RunAsOurs(t.Context(), 1, restore("*nat\n-A X -j ACCEPT\nCOMMIT\n")))
	w.finds(t, "after one more", Nothing)
	must(t, restore(two)())
	w.finds(t, "after another program's", Elements)()
	must(t, w.RunAsOurs(t.Context(), 2, func() error {
		foreign(t, "add element inet tested old { 10.0.0.1 }")
		return restore(two)()
	}))
	w.finds(t, "after ours with another program in between", Elements)
	if err := w.RunAsOurs(t.Context(), 1, restore("*nat\n-A NOWHERE -j X\nCOMMIT\n")); err == nil {
		t.Error("a wrong rule was taken")
	}
}

// TestNothingWritten: a transaction without a change makes no generation. So the generation of another program must not
// be taken for ours.
func TestNothingWritten(t *testing.T) {
	table, _ := open(t)
	must(t, table.Commit(t.Context(), nil, []Write{number(1)}))
	w := watched(t, table)
	must(t, table.Commit(t.Context(), nil, []Write{number(1)})) // the element exists
	foreign(t, "flush map inet tested numbers")
	w.finds(t, "after another program's write", Elements)
}

// TestSameName: a second Table of the same name counts as another program.
func TestSameName(t *testing.T) {
	table, _ := open(t)
	two := New("tested")
	t.Cleanup(two.Close)
	w := watched(t, table)
	must(t, two.Commit(t.Context(), nil, []Write{number(1)}))
	w.finds(t, "after a commit of its namesake", Elements)
	if settled, err := w.Settled(t.Context()); settled || err != nil {
		t.Errorf("settled %v, error %v", settled, err)
	}
}

// TestAtTheSameTime: two Tables commit from two goroutines while nft runs. Their Watches find no change. Afterwards
// they find the change of another program.
func TestAtTheSameTime(t *testing.T) {
	table, _ := open(t)
	two := other(t, "second")
	must(t, two.Commit(t.Context(), nil, []Write{number(0)})) // this opens the sockets
	w, w2 := watched(t, table), watched(t, two)
	// The number of commits is limited: nft starts again after each foreign commit, and would never finish.
	writes := make(chan int, 300*10)
	var alone sync.Mutex
	quiet := true // no other program has written
	var writer sync.WaitGroup
	writer.Go(func() { // on any thread: the sockets have their namespace
		for i := range writes {
			one := number(i % 50)
			one.Del, one.Add = i%100 >= 50, i%100 < 50
			if err := two.Commit(t.Context(), nil, []Write{one}); err != nil {
				t.Error(err)
				return
			}
			alone.Lock()
			if quiet {
				w2.finds(t, fmt.Sprint("after commit ", i, " of the second"), Nothing)
			}
			alone.Unlock()
		}
	})
	for i := range 300 {
		for n := range 10 {
			writes <- 10*i + n
		}
		must(t, table.Commit(t.Context(), nil, []Write{number(i)}))
		w.finds(t, fmt.Sprint("after commit ", i), Nothing)
		if i%20 == 0 {
			must(t, table.Run(t.Context(), fmt.Sprintf("add element inet tested old { 10.0.1.%d }", i/20)))
			w.finds(t, fmt.Sprint("after run ", i), Nothing)
		}
	}
	alone.Lock()
	quiet = false
	alone.Unlock()
	foreign(t, "add element inet tested old { 10.0.0.1 }")
	w.finds(t, "after another program's write, between those of the second", Elements)
	close(writes)
	writer.Wait()
	w.finds(t, "the same, when it is quiet", Elements)()
	w.finds(t, "accepted", Nothing)
}

// TestReference: after any sequence of our own and foreign writes, a Watch finds a change if and only if one write was
// foreign.
func TestReference(t *testing.T) {
	table, p := open(t)
	two := other(t, "second")
	foreign(t, "table inet theirs {\n\tset s {\n\t\ttype ipv4_addr\n\t}\n}")
	w := watched(t, table)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	strange := func() bool {
		foreign(t, fmt.Sprintf("add element inet theirs s { %v }", netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())})))
		return true
	}
	steps := []func() bool{
		strange,
		func() bool { must(t, table.Commit(t.Context(), nil, []Write{number(r.IntN(5))})); return false },
		func() bool { must(t, two.Commit(t.Context(), nil, []Write{number(r.IntN(5))})); return false },
		func() bool {
			must(t, two.Run(t.Context(), "flush map inet second numbers\nadd chain inet second c\nadd rule inet second c drop"))
			return false
		},
		func() bool { _, err := two.Load(t.Context(), p, true); must(t, err); return false },
		func() bool {
			must(t, table.Commit(t.Context(), func(c *nftables.Conn) (bool, error) {
				c.FlushSet(table.Set("numbers"))
				return true, nil
			}, nil))
			return false
		},
		func() bool { two.Close(); return false },
	}
	for range 60 {
		foreigner := false
		var done []int
		for range r.IntN(6) {
			i := r.IntN(len(steps))
			if i == 0 && r.IntN(3) > 0 {
				continue
			}
			foreigner = steps[i]() || foreigner
			done = append(done, i)
		}
		want := Nothing
		if foreigner {
			want = Elements
		}
		w.finds(t, fmt.Sprint("after ", done), want)()
	}
}

// TestLedger: the ledger forgets old generations, and knows that the kernel skips generation 0.
func TestLedger(t *testing.T) {
	one, two := &origin{"one"}, &origin{"two"}
	l := &ledger{commits: map[chan struct{}]bool{}}
	make := func(g uint32, by *origin) {
		must(t, l.commit(by, func() (uint32, error) { return g, nil }))
	}
	for _, g := range []uint32{^uint32(1), ^uint32(0), 1, 2} {
		make(g, one)
	}
	start := ^uint32(2)
	if !l.ours(start, 2, one) || !l.ours(start, 2, two) || l.ours(start-1, 2, one) || l.ours(start, 3, one) {
		t.Error("around generation 0 the ledger is wrong")
	}
	if l.ours(start, 2, &origin{"one"}) {
		t.Error("a namesake's generations are ours")
	}
	for g := uint32(3); g < 3+ledgerSize; g++ {
		make(g, two)
	}
	if !l.ours(2, 2+ledgerSize, two) || l.ours(1, 2+ledgerSize, two) || l.ours(2, 3+ledgerSize, two) {
		t.Error("at its end the ledger is wrong")
	}
}

// TestLedgerEnds: the ledger of a namespace ends with its last Table.
func TestLedgerEnds(t *testing.T) {
	table, _ := open(t)
	two := other(t, "second")
	l := table.ledger
	if l == nil || two.ledger != l || ledgers.of[l.ns] != l {
		t.Fatal("two open tables do not share a ledger")
	}
	table.Close()
	if ledgers.of[l.ns] != l {
		t.Error("the ledger is gone before its last table")
	}
	two.Close()
	if ledgers.of[l.ns] != nil {
		t.Error("the ledger outlives its last table")
	}
}
