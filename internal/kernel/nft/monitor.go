package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// A Monitor hears from the kernel that another program changes tables of this process, for example that it flushes the
// whole ruleset. The zero value is ready. One Monitor serves a whole process.
//
// The kernel sends a notification for each changed object, and then the generation. The Monitor looks up the generation
// in the ledger, so it ignores the changes of this process. An owner of a table gets a hint and calls Look.
type Monitor struct {
	mu    sync.Mutex
	owner map[string][]chan struct{} // by the name of a table
}

// monitorPause is the pause after a hint or a lost notification. So a program that changes tables all the time costs
// few comparisons.
const monitorPause = 250 * time.Millisecond

// monitorBuffer is the size of the buffer for one datagram. The kernel fills at most a page.
const monitorBuffer = 64 << 10

// Changed returns a channel that receives when another program may have changed one of the tables. It receives once when
// Run begins to listen.
func (m *Monitor) Changed(tables ...string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owner == nil {
		m.owner = map[string][]chan struct{}{}
	}
	hint := make(chan struct{}, 1)
	for _, name := range tables {
		m.owner[name] = append(m.owner[name], hint)
	}
	return hint
}

// Run reads the kernel's notifications until ctx ends, and returns nil then. It works in the network namespace of the
// calling goroutine's thread at its begin.
func (m *Monitor) Run(ctx context.Context) error {
	l := listener{Monitor: m}
	defer l.reader.Close()
	ledger, err := joinLedger()
	if err != nil {
		return fmt.Errorf("identify network namespace: %w", err)
	}
	defer ledger.leave()
	l.ledger = ledger
	for ctx.Err() == nil {
		if err := l.listen(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("read the notifications of nf_tables: %w", err)
		}
		rest(ctx)
	}
	return nil
}

// A listener is the state of Run. It belongs to one goroutine.
type listener struct {
	*Monitor
	ledger *ledger
	reader Reader
	// generation is the last known generation; 0: none yet. touched are the tables with owners that the next one has changed.
	generation uint32
	touched    map[string]bool
}

// listen opens a socket and reads it until notifications are lost.
func (l *listener) listen(ctx context.Context) error {
	file, err := netlink.Listen(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = file.Close() }) // ends Read
	defer func() {
		if stop() {
			_ = file.Close()
		}
	}()
	// The socket tells what comes after this generation.
	generation, err := l.reader.Generation(ctx)
	if err != nil {
		return err
	}
	if l.touched = map[string]bool{}; l.generation == 0 || !l.made(ctx, l.generation, generation) {
		l.hintAll()
	}
	l.generation = generation
	return l.read(ctx, file)
}

// read handles notifications until some are lost.
func (l *listener) read(ctx context.Context, file *os.File) error {
	for buf := make([]byte, monitorBuffer); ; {
		n, err := file.Read(buf)
		if errors.Is(err, unix.ENOBUFS) {
			return nil
		}
		if err != nil {
			return err
		}
		err = netlink.Messages(buf[:n], func(typ uint16, body []byte) error { return l.notification(ctx, typ, body) })
		if err != nil {
			return err
		}
	}
}

// notification handles one message. All messages of a transaction have the name of their table in the same attribute,
// and come before the message with its generation.
func (l *listener) notification(ctx context.Context, typ uint16, body []byte) error {
	if typ>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < nfgenmsg {
		return nil
	}
	attrs := body[nfgenmsg:]
	if typ&0xff != unix.NFT_MSG_NEWGEN {
		return netlink.Attributes(attrs, func(typ uint16, b []byte) error {
			if typ == unix.NFTA_TABLE_NAME {
				l.touch(netlink.Text(b))
			}
			return nil
		})
	}
	generation, err := parseGeneration(attrs)
	if err != nil {
		return err
	}
	if len(l.touched) > 0 {
		if !l.made(ctx, generation-1, generation) {
			l.hint()
			rest(ctx)
		}
		clear(l.touched)
	}
	l.generation = generation
	return nil
}

// made reports whether this process made all generations after from. It waits for commits in progress, but not for
// programs: the hint of a change by our own nft costs its owner one Look.
func (l *listener) made(ctx context.Context, from, to uint32) bool {
	nobody := &origin{}
	if l.ledger.ours(from, to, nobody) {
		return true
	}
	l.ledger.wait(ctx, false)
	return l.ledger.ours(from, to, nobody)
}

// touch notes a table that has an owner.
func (l *listener) touch(name []byte) {
	if l.touched[string(name)] {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner[string(name)] != nil {
		l.touched[string(name)] = true
	}
}

// hint tells the owners of the touched tables.
func (l *listener) hint() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.touched {
		for _, owner := range l.owner[name] {
			select {
			case owner <- struct{}{}:
			default:
			}
		}
	}
}

// hintAll tells all owners.
func (l *listener) hintAll() {
	l.mu.Lock()
	for name := range l.owner {
		l.touched[name] = true
	}
	l.mu.Unlock()
	l.hint()
	clear(l.touched)
}

// rest sleeps for monitorPause.
func rest(ctx context.Context) {
	timer := time.NewTimer(monitorPause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
