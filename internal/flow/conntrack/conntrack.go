package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
)

// Config configures a Table. Log is required.
type Config struct {
	Log *slog.Logger
	// Zone is the conntrack zone to work on. Entries of other zones are never touched.
	Zone uint16
	// NodePort reports whether an address of this machine serves NodePorts. It is asked only about untranslated flows
	// and about OnlyUnserved flows. Nil: all addresses except loopback serve NodePorts.
	NodePort func(netip.Addr) bool
}

// A Table gives access to the kernel's table of flows. It belongs to one goroutine, whose thread stays in the network
// namespace of the table. It starts no goroutine.
type Table struct {
	cfg    Config
	socket *socket // nil: not open
	// Tests replace these: the attribute of filters, which kernels before 5.8 ignore, and maxDumps.
	filterAttr uint16
	limit      func(entries int) int
}

// New returns a Table. It does not touch the kernel.
func New(cfg Config) *Table {
	if cfg.NodePort == nil {
		cfg.NodePort = func(a netip.Addr) bool { return !a.IsLoopback() }
	}
	return &Table{cfg: cfg, filterAttr: ctaFilter, limit: maxDumps}
}

// Close closes the socket. A closed Table may be used again.
func (t *Table) Close() {
	if t.socket != nil {
		t.socket.close()
		t.socket = nil
	}
}

// Get returns the entry of a connection by its original addresses. there is false if there is none.
func (t *Table) Get(ctx context.Context, p api.Proto, client, frontend netip.AddrPort) (found Entry, there bool, err error) {
	if err := t.connect(); err != nil {
		return found, false, err
	}
	err = t.socket.dump(ctx, getRequest(p, client, frontend, t.cfg.Zone), func(msg []byte) {
		if e, ok := parse(msg); ok {
			found, there = Entry{e.clone()}, true
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return found, false, nil
	}
	if err != nil {
		t.Close() // the socket may hold unread answers
		return found, false, fmt.Errorf("look for the connection %v to %v: %w", client, frontend, err)
	}
	return found, there, nil
}

// A Match is an entry together with the Flow that describes it.
type Match struct {
	Entry
	Flow flow.Flow
}

// Find returns the existing entries that flows describe.
func (t *Table) Find(ctx context.Context, flows []flow.Flow) ([]Match, error) {
	set, err := newSet(flows, t.cfg)
	if err != nil || len(flows) == 0 {
		return nil, err
	}
	return t.walk(ctx, set.match, func(entries int) []filter { return plan(flows, t.limit(entries)) })
}

// Audit returns the entries of the protocols for which wrong returns true. It reads the whole table. It is for the
// start of the agent, which does not know the kernel's flows. No protos means all protocols.
func (t *Table) Audit(ctx context.Context, protos []api.Proto, wrong func(Entry) bool) ([]Entry, error) {
	match := func(e entry) (flow.Flow, bool) {
		return flow.Flow{}, e.in(t.cfg.Zone) && (len(protos) == 0 || slices.Contains(protos, e.orig.proto)) && wrong(Entry{e})
	}
	found, err := t.walk(ctx, match, func(int) []filter { return []filter{{is4: true}, {is4: false}} })
	var entries []Entry
	for _, m := range found {
		entries = append(entries, m.Entry)
	}
	return entries, err
}

// ErrEnough ends Each before the end of the table.
var ErrEnough = errors.New("enough entries")

// Each calls f for each entry of the zone until f returns an error, and returns the number of entries in the table. An
// Entry is valid until f returns. It keeps none in memory. If f returns ErrEnough, Each returns no error.
func (t *Table) Each(ctx context.Context, f func(Entry) error) (entries int, err error) {
	defer func() {
		if err != nil {
			t.Close() // the socket may hold unread answers
		}
		if errors.Is(err, ErrEnough) {
			err = nil
		}
	}()
	if err := t.connect(); err != nil {
		return 0, err
	}
	if entries, err = t.socket.count(ctx); err != nil || entries == 0 {
		return entries, err
	}
	for _, is4 := range []bool{true, false} {
		if err := t.socket.stream(ctx, filter{is4: is4}.request(t.filterAttr), func(msg []byte) error {
			if e, ok := parse(msg); ok && e.in(t.cfg.Zone) {
				return f(Entry{e})
			}
			return nil
		}); err != nil {
			return entries, err
		}
	}
	return entries, nil
}

// Remove deletes entries, and returns how many of them still existed.
func (t *Table) Remove(ctx context.Context, all []Entry) (deleted int, err error) {
	return t.each(ctx, "delete", all, entry.deletion)
}

// walk returns the matching entries from the dumps of all filters.
func (t *Table) walk(ctx context.Context, match matcher, plan func(entries int) []filter) (found []Match, err error) {
	defer func() {
		if err != nil {
			t.Close() // the socket may hold unread answers
		}
	}()
	if err := t.connect(); err != nil {
		return nil, err
	}
	entries, err := t.socket.count(ctx)
	if err != nil || entries == 0 {
		return nil, err
	}
	for _, f := range plan(entries) {
		some, err := t.dump(ctx, f, match)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

func (t *Table) connect() (err error) {
	if t.socket == nil {
		t.socket, err = newSocket()
	}
	return err
}

// each sends a request for every entry, and returns how many of the entries still existed.
func (t *Table) each(ctx context.Context, what string, all []Entry, request func(entry) message) (done int, err error) {
	if len(all) == 0 {
		return 0, nil
	}
	if err := t.connect(); err != nil {
		return 0, err
	}
	raw := make([]entry, len(all))
	for i, e := range all {
		raw[i] = e.entry
	}
	if done, err = t.socket.each(ctx, what, raw, request); err != nil {
		t.Close()
	}
	return done, err
}

// A matcher reports whether an entry is wanted, and returns the Flow that describes it.
type matcher func(entry) (flow.Flow, bool)

// dump returns the matching entries from the dump of one filter. A kernel before 5.8 ignores the filter and sends all
// entries. Then a dump takes longer, and a walk with several filters finds an entry several times.
func (t *Table) dump(ctx context.Context, f filter, match matcher) (found []Match, err error) {
	err = t.socket.dump(ctx, f.request(t.filterAttr), func(msg []byte) {
		e, ok := parse(msg)
		if !ok {
			return
		}
		if described, ok := match(e); ok {
			found = append(found, Match{Entry{e.clone()}, described})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	t.cfg.Log.Debug("searched for flows", "filter", f, "found", len(found))
	return found, nil
}
