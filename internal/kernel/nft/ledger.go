package nft

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A ledger records which generations of one network namespace this process made. All Tables
// of the process that are open in the namespace share it; see the package's comment.
type ledger struct {
	ns    namespace
	file  *os.File // keeps the namespace, so that no other namespace gets its number
	users int      // open Tables; guarded by ledgers

	mu      sync.Mutex
	entries [ledgerSize]entry // by generation modulo ledgerSize
	commits map[chan struct{}]bool
	runs    *runs // programs that run now; nil: none
}

// ledgerSize is how many of the last generations a ledger has. A Watch that is further
// behind takes the changes for foreign, which costs a comparison.
const ledgerSize = 4096

// patience is how long a Watch waits for transactions in progress, to see whether they made
// the generations that it finds.
const patience = time.Second

// An entry is one generation that we made.
type entry struct {
	generation uint32 // 0, which the kernel skips: no entry
	by         []*origin
}

// An origin identifies a Table in the ledger, also after the Table is closed.
type origin struct{ name string }

// namespace identifies a network namespace for as long as it exists.
type namespace struct{ dev, ino uint64 }

// ledgers has the ledger of each namespace in which a Table is open.
var ledgers = struct {
	sync.Mutex
	of map[namespace]*ledger
}{of: map[namespace]*ledger{}}

// joinLedger returns the ledger of the calling thread's network namespace. The caller must
// call leave in the end.
func joinLedger() (*ledger, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	ns := namespace{uint64(st.Dev), st.Ino}
	ledgers.Lock()
	defer ledgers.Unlock()
	l := ledgers.of[ns]
	if l == nil {
		l = &ledger{ns: ns, file: file, commits: map[chan struct{}]bool{}}
		ledgers.of[ns] = l
	} else {
		_ = file.Close() // it was only read
	}
	l.users++
	return l, nil
}

func (l *ledger) leave() {
	ledgers.Lock()
	defer ledgers.Unlock()
	if l.users--; l.users == 0 {
		delete(ledgers.of, l.ns)
		_ = l.file.Close()
	}
}

// after returns the next generation: the kernel skips 0.
func after(generation uint32) uint32 { return max(1, generation+1) }

// ours reports whether all generations after from, up to to, are recorded and none is of
// another Table with the name of by.
func (l *ledger) ours(from, to uint32, by *origin) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to-from > ledgerSize {
		return false
	}
	for g := from; g != to; {
		g = after(g)
		e := l.entries[g%ledgerSize]
		if e.generation != g || slices.ContainsFunc(e.by, func(o *origin) bool { return o != by && o.name == by.name }) {
			return false
		}
	}
	return true
}

// enter records a generation. The caller holds mu.
func (l *ledger) enter(generation uint32, by ...*origin) {
	l.entries[generation%ledgerSize] = entry{generation, by}
}

// commit calls send, which makes one transaction and returns its generation; 0: the
// transaction changed nothing, or its result is unknown.
func (l *ledger) commit(by *origin, send func() (uint32, error)) error {
	done := make(chan struct{})
	l.mu.Lock()
	l.commits[done] = true
	l.mu.Unlock()
	generation, err := send()
	l.mu.Lock()
	if generation != 0 {
		l.enter(generation, by)
	}
	delete(l.commits, done)
	l.mu.Unlock()
	close(done)
	return err
}

// runs are programs that run at the same time and make transactions in our name.
type runs struct {
	from, to uint32 // generations: before the first of them, after the last
	n        uint32 // transactions that they make
	by       []*origin
	running  int
	failed   bool // a program failed: its transactions are unknown
	done     chan struct{}
}

// begin records that a program that makes n transactions will run; from is a generation
// from before it.
func (l *ledger) begin(by *origin, from, n uint32) *runs {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs == nil {
		l.runs = &runs{from: from, to: from, done: make(chan struct{})}
	}
	r := l.runs
	r.n += n
	r.running++
	r.by = append(r.by, by)
	return r
}

// end records that a program of r has ended; to is a generation from after it. When all
// programs have ended, the generations without an entry are theirs if they are as many as
// the programs' transactions.
func (l *ledger) end(ctx context.Context, r *runs, to uint32, failed bool) {
	l.wait(ctx, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	r.failed = r.failed || failed
	if !failed && to-r.from > r.to-r.from {
		r.to = to
	}
	if r.running--; r.running > 0 {
		return
	}
	l.runs = nil
	defer close(r.done)
	if r.failed || r.to-r.from > ledgerSize {
		return
	}
	var open []uint32
	for g := r.from; g != r.to; {
		if g = after(g); l.entries[g%ledgerSize].generation != g {
			open = append(open, g)
		}
	}
	if uint32(len(open)) == r.n {
		for _, g := range open {
			l.enter(g, r.by...)
		}
	}
}

// wait returns when the commits in progress are recorded and, if programs is set, the
// programs too; at the latest when ctx ends or patience is over.
func (l *ledger) wait(ctx context.Context, programs bool) {
	l.mu.Lock()
	var all []chan struct{}
	for done := range l.commits {
		all = append(all, done)
	}
	if programs && l.runs != nil {
		all = append(all, l.runs.done)
	}
	l.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		}
	}
}
