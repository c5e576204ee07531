package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/path/trace"
)

const (
	// maxRecords bounds the kept messages of each source. A probe through 20 rules on its way and back makes 60.
	maxRecords = 4096
	// settle is how long Stop waits for the last messages. The kernel sends a message before the packet goes on.
	settle = 30 * time.Millisecond
	// removeLimit is how long the removal of the table may take.
	removeLimit = 2 * time.Second
	// traceBuffer is the size of the socket buffer for trace messages.
	traceBuffer = 4 << 20
	readBuffer  = 64 << 10
)

// Config is where an observer looks on its node. The zero value is right for a node.
type Config struct {
	Namespaces []string // patterns of the files of pods' network namespaces; nil: netns.Files
}

func (c Config) files() []string {
	if c.Namespaces == nil {
		return netns.Files
	}
	return c.Namespaces
}

// A Watch watches one node for one order. Arm, Stop and Close must run in the same network namespace.
type Watch struct {
	order   trace.Order
	files   []string
	inode   uint64 // of the node's namespace
	lock    *nft.Lock
	reader  nft.Reader
	traces  *os.File
	flows   *conntrack.Watcher
	drops   *drops
	missing map[trace.Source]string
	from    uint32 // nf_tables' generation after the table was made
	pods    []pod  // the endpoints on this node

	readers, dropReader sync.WaitGroup
	mu                  sync.Mutex
	traced              records[traced]
	changes             records[change]
	dropped             records[dropped]
}

// records are the messages of one source, with the time at which they were read.
type records[T any] struct {
	all  []T
	at   []time.Time
	lost bool
}

// A change is an event of conntrack.
type change struct {
	kind  conntrack.Change
	entry conntrack.Entry
}

// Arm begins to watch, in the network namespace of the calling thread. From its return on every packet of the probe is
// seen. The caller calls Stop, or Close.
func Arm(ctx context.Context, o trace.Order, cfg Config) (*Watch, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	w := &Watch{order: o, files: cfg.files(), missing: map[trace.Source]string{}}
	if err := w.arm(ctx); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch for the probe: %w", err)
	}
	return w, nil
}

func (w *Watch) arm(ctx context.Context) (err error) {
	if w.inode, err = netns.Inode("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if err := w.listen(); err != nil {
		return err
	}
	if w.lock, err = arm(ctx, w.order); err != nil {
		return err
	}
	w.pods = w.findPods()
	w.from, err = w.reader.Generation(ctx)
	return err
}

// listen opens the sources. Only the traces are indispensable.
func (w *Watch) listen() (err error) {
	if w.traces, err = netlink.Listen(unix.NETLINK_NETFILTER, traceGroup); err != nil {
		return err
	}
	raw, err := w.traces.SyscallConn()
	if err != nil {
		return err
	}
	_ = raw.Control(func(fd uintptr) { // without the right the buffer is small, and Done.Lost says so
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, traceBuffer)
	})
	w.readers.Go(w.readTraces)
	if w.flows, err = conntrack.Watch(); err != nil {
		w.missing[trace.FromConntrack] = err.Error()
	} else {
		w.readers.Go(w.readFlows)
	}
	if w.drops, err = openDrops(w.order); err != nil {
		w.missing[trace.FromDrop] = err.Error()
	} else {
		w.dropReader.Go(w.readDrops)
	}
	return nil
}

// Armed describes the watch.
func (w *Watch) Armed() trace.Armed {
	a := trace.Armed{Node: w.order.Node, Sources: []trace.Source{trace.FromNFTrace}, Missing: w.missing}
	for _, s := range []trace.Source{trace.FromConntrack, trace.FromDrop} {
		if w.missing[s] == "" {
			a.Sources = append(a.Sources, s)
		}
	}
	return a
}

// finish ends the sources after their last messages, and removes the table.
func (w *Watch) finish() {
	at := time.Now().Add(settle)
	if w.traces != nil {
		_ = w.traces.SetReadDeadline(at)
	}
	if w.flows != nil {
		_ = w.flows.SetDeadline(at)
	}
	w.readers.Wait()
	if w.drops != nil {
		w.drops.flush()
		w.dropReader.Wait()
	}
}

// Close ends the watch without a result. It may be called twice, and after Stop.
func (w *Watch) Close() {
	w.finish()
	if w.traces != nil {
		_ = w.traces.Close()
	}
	if w.flows != nil {
		w.flows.Close()
	}
	if w.drops != nil {
		w.drops.close()
	}
	if w.lock != nil {
		ctx, cancel := context.WithTimeout(context.Background(), removeLimit)
		defer cancel()
		_ = w.lock.Remove(ctx, tableName(w.order.Run)) // after an error the kernel removes it with the socket
	}
	w.reader.Close()
	w.traces, w.flows, w.drops, w.lock = nil, nil, nil, nil
}

func (w *Watch) readTraces() {
	buf := make([]byte, readBuffer)
	for {
		n, err := netlink.Read(w.traces, buf)
		now := time.Now()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			keep(w, &w.traced, nil, now)
			continue
		case err != nil: // the deadline of finish
			return
		}
		_ = netlink.Messages(buf[:n], func(typ uint16, body []byte) error {
			if typ != traceMessage {
				return nil
			}
			if m, err := decodeTrace(body); err == nil {
				keep(w, &w.traced, &m, now)
			}
			return nil
		})
	}
}

func (w *Watch) readFlows() {
	buf := make([]byte, readBuffer)
	for {
		err := w.flows.Next(buf, func(kind conntrack.Change, e conntrack.Entry) {
			if w.concerns(e) {
				keep(w, &w.changes, &change{kind, e}, time.Now())
			}
		})
		switch {
		case errors.Is(err, unix.ENOBUFS):
			keep(w, &w.changes, nil, time.Now())
		case err != nil: // the deadline of finish
			return
		}
	}
}

func (w *Watch) readDrops() {
	for {
		d, err := w.drops.next()
		switch {
		case errors.Is(err, errMalformed):
		case err != nil: // flushed
			return
		default:
			keep(w, &w.dropped, &d, time.Now())
		}
	}
}

// concerns reports whether an entry can be the probe's. The join decides with the packets that nf_tables saw.
func (w *Watch) concerns(e conntrack.Entry) bool {
	if uint8(e.Proto()) != w.order.Proto {
		return false
	}
	if e.Frontend() == w.order.To || e.Endpoint() == w.order.To {
		return true
	}
	for _, at := range w.order.Endpoints {
		if e.Frontend() == at || e.Endpoint() == at {
			return true
		}
	}
	return w.order.Port != 0 && e.Client().Port() == w.order.Port
}

// keep appends a record. A nil record says that some were lost.
func keep[T any](w *Watch, r *records[T], one *T, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one == nil || len(r.all) == maxRecords {
		r.lost = true
		return
	}
	r.all, r.at = append(r.all, *one), append(r.at, at)
}
