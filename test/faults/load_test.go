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

	"github.com/fairway-net/fairway/internal/testing/testnet"
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
	conns    int // that were opened at the start

	mu    sync.Mutex
	tally *tally                      // of now
	asked map[*testnet.Conn]time.Time // when what a connection that lives has answered last was asked
}

// A tally is what became of what was asked in one period.
type tally struct {
	lost             int // long-lived connections that ended, or were answered wrongly
	answers          int // on them
	requests, failed int
	last             time.Time      // when the last request that failed was sent
	why              map[string]int // how often what was lost and failed
}

// String names what went wrong, most frequent first.
func (t *tally) String() string {
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
	d := &load{patience: patience, stop: make(chan struct{}), asked: map[*testnet.Conn]time.Time{}}
	d.next()
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

// end stops all, and returns when each request has had its answer.
func (d *load) end() {
	select {
	case <-d.stop:
	default:
		close(d.stop)
	}
	d.running.Wait()
}

// next begins a period. What is asked from now on is counted in its tally, which is complete
// when the load has ended.
func (d *load) next() *tally {
	t := &tally{why: map[string]int{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tally = t
	return t
}

// now returns the tally of this moment.
func (d *load) now() *tally {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tally
}

// met returns an error as long as a period has met no load of one kind.
func (d *load) met(t *tally) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.answers == 0 || t.requests == 0 {
		return fmt.Errorf("%d answers, %d requests", t.answers, t.requests)
	}
	return nil
}

// answered notes what a connection was asked last, or that it has ended.
func (d *load) answered(conn *testnet.Conn, asked time.Time, lives bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if lives {
		d.asked[conn] = asked
	} else {
		delete(d.asked, conn)
	}
}

// settled returns an error as long as a connection that lives has not answered what it was asked
// since: what it waits for is an earlier fault's.
func (d *load) settled(since time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	waiting := 0
	for _, asked := range d.asked {
		if asked.Before(since) {
			waiting++
		}
	}
	if waiting > 0 {
		return fmt.Errorf("%d of %d have not", waiting, len(d.asked))
	}
	return nil
}

// count counts in n, a part of a tally.
func (d *load) count(n *int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*n++
}

// wrong counts in n what went wrong, and why.
func (d *load) wrong(t *tally, n *int, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*n++
	t.why[why]++
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
	asked := time.Now()
	first := conn.Ask(long)
	if first.Outcome != testnet.Answered {
		conn.Close()
		l.Fatalf("%s: %v", w.name, first)
	}
	d.conns++
	d.answered(conn, asked, true) // its next question may be the one that a fault keeps waiting
	d.running.Go(func() {
		defer conn.Close()
		tick := time.NewTicker(pulse)
		defer tick.Stop()
		for d.rest(tick.C) {
			t, asked := d.now(), time.Now()
			a := conn.Ask(long)
			d.answered(conn, asked, a == first)
			if a != first {
				d.wrong(t, &t.lost, fmt.Sprintf("lost: %s: first %v, then %v (%v)", w.name, first, a, a.Err))
				return
			}
			d.count(&t.answers)
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
		t, sent := d.now(), time.Now()
		d.count(&t.requests)
		select {
		case free <- struct{}{}:
		default:
			d.wrong(t, &t.failed, "not sent: too many wait: "+w.name)
			continue
		}
		open.Go(func() {
			defer func() { <-free }()
			a := w.from.Ask(w.network, w.to, d.patience)
			if a.Outcome == testnet.Answered {
				return
			}
			d.wrong(t, &t.failed, fmt.Sprintf("failed: %s: %s", w.name, reason(a)))
			d.mu.Lock()
			defer d.mu.Unlock()
			if sent.After(t.last) {
				t.last = sent
			}
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
