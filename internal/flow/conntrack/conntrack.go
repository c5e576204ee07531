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

// Config says how a Table works. Only Log must be set.
type Config struct {
	Log *slog.Logger
	// Zone is the conntrack zone whose flows are meant; others are never touched.
	Zone uint16
	// NodePort reports whether NodePorts are served on an address of this machine. It
	// is asked about untranslated flows and OnlyUnserved ones only. Nil: on all but
	// loopback addresses.
	NodePort func(netip.Addr) bool
}

// A Table is the kernel's table of flows. It belongs to one goroutine, which stays in
// one network namespace: the one that it works on. It starts no goroutine.
type Table struct {
	cfg    Config
	socket *socket // nil: not open
	// noKernelFilter says that the kernel does not filter dumps (before Linux 5.8).
	noKernelFilter bool
	// Tests set these: how filters are encoded, and maxDumps.
	attr  filterAttr
	limit func(entries int) int
}

// New returns a Table. It does not touch the kernel.
func New(cfg Config) *Table {
	if cfg.NodePort == nil {
		cfg.NodePort = func(a netip.Addr) bool { return !a.IsLoopback() }
	}
	return &Table{cfg: cfg, attr: filterAttr{filter: ctaFilter}, limit: maxDumps}
}

// Close closes the socket. A closed Table may be used again.
func (t *Table) Close() {
	if t.socket != nil {
		t.socket.close()
		t.socket = nil
	}
}

// A Match is an entry that one of the wanted flows describes.
type Match struct {
	Entry
	Flow flow.Flow
}

// Find returns the entries that exist of the flows described.
func (t *Table) Find(ctx context.Context, flows []flow.Flow) ([]Match, error) {
	set, err := newSet(flows, t.cfg)
	if err != nil || len(flows) == 0 {
		return nil, err
	}
	return t.walk(ctx, set.match, func(entries int) []filter { return plan(flows, t.limit(entries)) })
}

// Audit returns the entries of the protocols for which wrong returns true. It reads the whole table: it is for the
// start, when nobody knows which flows the kernel still has.
func (t *Table) Audit(ctx context.Context, protos []api.Proto, wrong func(Entry) bool) ([]Entry, error) {
	match := func(e entry) (flow.Flow, bool) {
		return flow.Flow{}, e.in(t.cfg.Zone) && slices.Contains(protos, e.orig.proto) && wrong(Entry{e})
	}
	found, err := t.walk(ctx, match, func(int) (all []filter) {
		for _, p := range protos {
			all = append(all, filter{is4: true, proto: p}, filter{proto: p})
		}
		return all
	})
	var entries []Entry
	for _, m := range found {
		entries = append(entries, m.Entry)
	}
	return entries, err
}

// Remove deletes entries and returns how many were still there.
func (t *Table) Remove(ctx context.Context, all []Entry) (deleted int, err error) {
	return t.each(ctx, "delete", all, entry.deletion)
}

// walk returns the entries of the filters' dumps that match.
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
	for todo := plan(entries); len(todo) > 0; {
		if t.noKernelFilter {
			todo = merge(todo) // every dump is of the whole table: one a family is enough
		}
		was := t.noKernelFilter
		some, err := t.dump(ctx, todo[0], match)
		if err != nil {
			return nil, err
		}
		if t.noKernelFilter != was { // the dumps of whole families find all again
			found, todo = nil, plan(entries)
			continue
		}
		found, todo = append(found, some...), todo[1:]
	}
	return found, nil
}

func (t *Table) connect() (err error) {
	if t.socket == nil {
		t.socket, err = newSocket()
	}
	return err
}

// each sends a request for every entry, and returns how many entries were still there.
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

// A matcher reports whether an entry is wanted, and the flow that describes it.
type matcher func(entry) (flow.Flow, bool)

// dump returns the entries that match of those that f finds. It may find out that the kernel
// does not filter.
func (t *Table) dump(ctx context.Context, f filter, match matcher) (found []Match, err error) {
	attr := t.attr
	if t.noKernelFilter {
		attr.filter = 0
	}
	err = t.socket.dump(ctx, f.request(attr), func(msg []byte) {
		e, ok := parse(msg)
		if !ok {
			return
		}
		if !t.noKernelFilter && !f.admits(e) {
			t.disableKernelFilter(nil)
		}
		if described, ok := match(e); ok {
			found = append(found, Match{Entry{e.clone()}, described})
		}
	})
	switch {
	case !t.noKernelFilter && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
		t.disableKernelFilter(err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list: %w", err)
	}
	t.cfg.Log.Debug("searched for flows", "filter", f, "found", len(found))
	return found, nil
}

// disableKernelFilter notes that the kernel does not filter. A kernel before 5.8 ignores
// attributes that it does not know, and sends everything.
func (t *Table) disableKernelFilter(err error) {
	t.noKernelFilter = true
	t.cfg.Log.Warn("the kernel cannot filter its conntrack table; all of it is read for every change [Linux 5.8 and later can]", "err", err)
}
