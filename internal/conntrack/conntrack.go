package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/service"
)

// A Flow describes the flows from any client by way of Frontend to Endpoint.
type Flow struct {
	Proto service.Proto
	// Frontend is where the client sends to: the original destination. The unspecified
	// address of a family stands for a NodePort: any address with this port.
	Frontend netip.AddrPort
	// Endpoint is who answers: the source of the reply. Invalid: nobody was chosen, the
	// flow was never translated, so that the reply would come from the frontend itself.
	// Of a NodePort that means flows to addresses of this machine only; flows to the
	// same port of other machines pass here and are none of the Service's business.
	Endpoint netip.AddrPort
	// Unserved narrows a NodePort to the addresses on which NodePorts are not served.
	Unserved bool
}

// String returns "10.96.0.10:53/UDP to 10.244.1.5:53" or "10.96.0.10:53/UDP untranslated".
func (f Flow) String() string {
	k := service.Key{Addr: f.Frontend, Proto: f.Proto}
	where := ""
	if f.Unserved {
		where = " on other addresses"
	}
	if !f.Endpoint.IsValid() {
		return k.String() + " untranslated" + where
	}
	return k.String() + " to " + f.Endpoint.String() + where
}

// Config says how a Table works. Only Log must be set.
type Config struct {
	Log *slog.Logger
	// Zone is the conntrack zone whose flows are meant; others are never touched.
	Zone uint16
	// NodePort reports whether NodePorts are served on an address of this machine. It
	// is asked about untranslated flows and Unserved ones only. Nil: on all but loopback
	// addresses.
	NodePort func(netip.Addr) bool
}

// A Table is the kernel's table of flows. It belongs to one goroutine, which stays in
// one network namespace: the one that it works on. It starts no goroutine.
type Table struct {
	cfg  Config
	open *socket // nil: not yet
	// deaf says that the kernel does not understand filters.
	deaf bool
	// Tests set these: how filters are asked for, and maxDumps.
	ask   asking
	limit func(entries int) int
}

// New returns a Table. It does not touch the kernel.
func New(cfg Config) *Table {
	if cfg.NodePort == nil {
		cfg.NodePort = func(a netip.Addr) bool { return !a.IsLoopback() }
	}
	return &Table{cfg: cfg, ask: asking{filter: ctaFilter}, limit: maxDumps}
}

// Close gives back the socket. A closed Table may be used again.
func (t *Table) Close() {
	if t.open != nil {
		t.open.close()
		t.open = nil
	}
}

// Delete deletes the flows that exist of those described and returns how many it
// deleted, also when it fails midway. It may be repeated after an error. Call it when
// the kernel has the new rules, or a client's next packet brings the flow back.
func (t *Table) Delete(ctx context.Context, flows []Flow) (deleted int, err error) {
	found, err := t.Find(ctx, flows)
	if err == nil {
		deleted, err = t.Remove(ctx, found)
	}
	if err != nil {
		return deleted, fmt.Errorf("delete flows: %w", err)
	}
	return deleted, nil
}

// Find returns the flows that exist of those described.
func (t *Table) Find(ctx context.Context, flows []Flow) (found []Entry, err error) {
	set, err := newSet(flows, t.cfg)
	if err != nil || len(flows) == 0 {
		return nil, err
	}
	return t.walk(ctx, set.has, func(entries int) []filter { return plan(flows, t.limit(entries)) })
}

// Wrong returns the flows of the protocols that wrong says are wrong. It reads the whole
// table: it is for the start, when nobody knows what the kernel remembers.
func (t *Table) Wrong(ctx context.Context, protos []service.Proto, wrong func(Entry) bool) (found []Entry, err error) {
	mine := func(e entry) bool {
		return e.in(t.cfg.Zone) && slices.Contains(protos, e.orig.proto) && wrong(Entry{e})
	}
	return t.walk(ctx, mine, func(int) (all []filter) {
		for _, p := range protos {
			all = append(all, filter{is4: true, proto: p}, filter{proto: p})
		}
		return all
	})
}

// Remove deletes entries and returns how many were still there.
func (t *Table) Remove(ctx context.Context, all []Entry) (deleted int, err error) {
	return t.each(ctx, "delete", all, entry.deletion)
}

// walk returns the entries of the filters' dumps that has reports.
func (t *Table) walk(ctx context.Context, has func(entry) bool, plan func(entries int) []filter) (found []Entry, err error) {
	defer func() {
		if err != nil {
			t.Close() // answers may wait in it
		}
	}()
	if err := t.connect(); err != nil {
		return nil, err
	}
	entries, err := t.open.count(ctx)
	if err != nil || entries == 0 {
		return nil, err
	}
	for todo := plan(entries); len(todo) > 0; {
		if t.deaf {
			todo = merge(todo) // every dump is whole: once is enough
		}
		was := t.deaf
		some, err := t.sweep(ctx, todo[0], has)
		if err != nil {
			return nil, err
		}
		if t.deaf != was { // what was found so far is in what comes now
			found, todo = nil, plan(entries)
			continue
		}
		found, todo = append(found, some...), todo[1:]
	}
	return found, nil
}

func (t *Table) connect() (err error) {
	if t.open == nil {
		t.open, err = newSocket()
	}
	return err
}

// each asks for something to be done to every entry, and returns how many were still
// there.
func (t *Table) each(ctx context.Context, what string, all []Entry, ask func(entry) message) (done int, err error) {
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
	if done, err = t.open.each(ctx, what, raw, ask); err != nil {
		t.Close()
	}
	return done, err
}

// sweep returns the flows that has reports among those that f finds. It may find out
// that the kernel is deaf.
func (t *Table) sweep(ctx context.Context, f filter, has func(entry) bool) (found []Entry, err error) {
	ask := t.ask
	if t.deaf {
		ask.filter = 0
	}
	err = t.open.dump(ctx, f.request(ask), func(msg []byte) {
		e, ok := parse(msg)
		if !ok {
			return
		}
		if !t.deaf && !f.admits(e) {
			t.noFilter(nil)
		}
		if has(e) {
			found = append(found, Entry{e.clone()})
		}
	})
	switch {
	case !t.deaf && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
		t.noFilter(err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list: %w", err)
	}
	t.cfg.Log.Debug("looked for flows", "filter", f, "found", len(found))
	return found, nil
}

// noFilter remembers that the kernel does not search for us. A kernel before 5.8 passes
// over attributes that it does not know, and sends everything.
func (t *Table) noFilter(err error) {
	t.deaf = true
	t.cfg.Log.Warn("the kernel cannot search its table of flows; it is read whole for every change (5.8 and later can)", "error", err)
}
