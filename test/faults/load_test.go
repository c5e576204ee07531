package faults

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/testnet"
)

// A way is one way to the Service that is under load.
type way struct {
	name    string
	from    *testnet.Namespace
	network string // tcp or udp
	to      netip.AddrPort
}

// A load uses all ways until it is stopped, and counts what goes wrong.
type load struct {
	patience time.Duration // after which a request has failed
	stop     chan struct{}
	running  sync.WaitGroup

	mu    sync.Mutex
	tally tally
}

// A tally is what a load has counted so far.
type tally struct {
	conns, lost      int // long-lived connections: opened at the start; ended or answered wrongly since
	answers          int // on them
	requests, failed int
	last             time.Time      // when the last request that failed was sent
	why              map[string]int // how often what was lost and failed
}

// since is what was counted between was and t.
func (t tally) since(was tally) tally {
	t.lost -= was.lost
	t.answers -= was.answers
	t.requests -= was.requests
	t.failed -= was.failed
	why := map[string]int{}
	for text, n := range t.why {
		if n -= was.why[text]; n > 0 {
			why[text] = n
		}
	}
	t.why = why
	return t
}

// String names what went wrong, most frequent first.
func (t tally) String() string {
	var b strings.Builder
	for _, text := range slices.SortedFunc(maps.Keys(t.why), func(a, b string) int {
		return 2*(t.why[b]-t.why[a]) + strings.Compare(a, b)
	}) {
		fmt.Fprintf(&b, "%d times %s\n", t.why[text], text)
	}
	return b.String()
}

// How much load there is.
const (
	perWay   = 3                      // long-lived connections
	pulse    = 100 * time.Millisecond // from one answer on a connection to the next question
	interval = 200 * time.Millisecond // from one request on a way to the next
	inFlight = 200                    // requests that wait for their answers on one way
)

// startLoad opens the long-lived connections, which must succeed, and starts all.
func (l *lab) startLoad(ways []way, patience time.Duration) *load {
	l.Helper()
	d := &load{patience: patience, stop: make(chan struct{}), tally: tally{why: map[string]int{}}}
	l.Cleanup(d.end)
	for _, w := range ways {
		for range perWay {
			if w.network == "tcp" {
				l.startConn(d, w)
			}
		}
		d.running.Go(func() { d.request(w) })
	}
	return d
}

// end stops all and returns the last tally.
func (d *load) end() {
	select {
	case <-d.stop:
	default:
		close(d.stop)
	}
	d.running.Wait()
}

// now returns what was counted so far.
func (d *load) now() tally {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tally
	t.why = maps.Clone(t.why)
	return t
}

// count changes the tally. why is what went wrong; empty: nothing did.
func (d *load) count(why string, change func(*tally)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.tally)
	if why != "" {
		d.tally.why[why]++
	}
}

// rest waits for a pause, and reports false if the load ends.
func (d *load) rest(pause <-chan time.Time) bool {
	select {
	case <-d.stop:
		return false
	case <-pause:
		return true
	}
}

// startConn opens a long-lived connection. As long as it lives, each answer must be from
// the same pod, which must see the same client.
func (l *lab) startConn(d *load, w way) {
	l.Helper()
	conn, err := w.from.Dial(w.network, w.to, long)
	if err != nil {
		l.Fatalf("%s: %v", w.name, err)
	}
	first := conn.Ask(long)
	if first.Outcome != testnet.Answered {
		conn.Close()
		l.Fatalf("%s: %v", w.name, first)
	}
	d.count("", func(t *tally) { t.conns++ })
	d.running.Go(func() {
		defer conn.Close()
		tick := time.NewTicker(pulse)
		defer tick.Stop()
		for d.rest(tick.C) {
			a := conn.Ask(long)
			if a != first {
				d.count(fmt.Sprintf("lost: %s: first %v, then %v (%v)", w.name, first, a, a.Err), func(t *tally) { t.lost++ })
				return
			}
			d.count("", func(t *tally) { t.answers++ })
		}
	})
}

// request sends new requests at a fixed rate, whatever becomes of them.
func (d *load) request(w way) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var open sync.WaitGroup
	defer open.Wait()
	free := make(chan struct{}, inFlight)
	for d.rest(tick.C) {
		select {
		case free <- struct{}{}:
		default:
			d.count("not sent: too many wait: "+w.name, func(t *tally) { t.requests++; t.failed++; t.last = time.Now() })
			continue
		}
		open.Go(func() {
			defer func() { <-free }()
			sent := time.Now()
			a := w.from.Ask(w.network, w.to, d.patience)
			if a.Outcome == testnet.Answered {
				d.count("", func(t *tally) { t.requests++ })
				return
			}
			d.count(fmt.Sprintf("failed: %s: %s", w.name, reason(a)), func(t *tally) {
				t.requests++
				t.failed++
				if sent.After(t.last) {
					t.last = sent
				}
			})
		})
	}
}

// reason is why there was no answer, without what differs from one request to the next.
func reason(a testnet.Answer) string {
	err := a.Err
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return fmt.Sprintf("%v: %v", a.Outcome, err)
}
