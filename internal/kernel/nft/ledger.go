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

// A ledger records the generations of one network namespace that this process made. All open Tables of the process in
// that namespace share it. The package comment explains why.
type ledger struct {
	ns    namespace
	file  *os.File // keeps the namespace open, so that no other namespace gets its number
	users int      // the number of open Tables; guarded by ledgers

	mu      sync.Mutex
	entries [ledgerSize]entry      // by generation modulo ledgerSize
	commits map[chan struct{}]bool // the commits in progress; a commit closes its channel when it is recorded
	runs    *runs                  // the programs that run now; nil: none
}

// ledgerSize is the number of generations that a ledger remembers. A Watch that is further behind takes changes for
// foreign, which costs a comparison.
const ledgerSize = 4096

// patience is how long a Watch waits for transactions in progress, in case they made the generations without an entry.
// The limit keeps a hanging program from delaying other Tables for long.
const patience = time.Second

// An entry records one generation that this process made.
type entry struct {
	generation uint32 // 0: no entry (the kernel skips 0)
	by         []*origin
}

// An origin identifies a Table in the ledger, also after Close.
type origin struct{ name string }

// namespace identifies a network namespace while the namespace exists.
type namespace struct{ dev, ino uint64 }

// ledgers has the ledger of each namespace with an open Table.
var ledgers = struct {
	sync.Mutex
	of map[namespace]*ledger
}{of: map[namespace]*ledger{}}

// joinLedger returns the ledger of the calling thread's network namespace. The caller must call leave in the end.
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
		_ = file.Close() // nothing was written
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

// after returns the next generation. The kernel skips 0.
func after(generation uint32) uint32 { return max(1, generation+1) }

// ours reports whether this process made all generations after from, up to and including to, and no other Table with
// the same name as by took part.
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

// enter records a generation. The caller must hold mu.
func (l *ledger) enter(generation uint32, by ...*origin) {
	l.entries[generation%ledgerSize] = entry{generation, by}
}

// commit calls send, which makes one transaction and returns its generation. The generation is 0 if the transaction
// changed nothing, or if its result is unknown.
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

// runs describes programs that run at the same time and make transactions for us.
type runs struct {
	from, to uint32    // the generations before the first program started, and after the last one ended
	n        uint32    // the sum of their transactions
	by       []*origin // the Tables that started them
	running  int
	failed   bool // a program failed, so the number of its transactions is unknown
	done     chan struct{}
}

// begin records that a program is about to run and make n transactions. from is the generation before it starts.
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

// end records that a program of r has ended. to is the generation after it. When all programs of r have ended, the
// generations without an entry are theirs if their number equals the number of the programs' transactions.
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
	var missing []uint32
	for g := r.from; g != r.to; {
		if g = after(g); l.entries[g%ledgerSize].generation != g {
			missing = append(missing, g)
		}
	}
	if uint32(len(missing)) == r.n {
		for _, g := range missing {
			l.enter(g, r.by...)
		}
	}
}

// wait waits until the commits in progress are recorded and, if programs is set, the programs have ended. It returns
// earlier if ctx ends or patience is over.
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
