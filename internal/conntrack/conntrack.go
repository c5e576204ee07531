package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

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
}

// String returns "10.96.0.10:53/UDP to 10.244.1.5:53" or "10.96.0.10:53/UDP untranslated".
func (f Flow) String() string {
	k := service.Key{Addr: f.Frontend, Proto: f.Proto}
	if !f.Endpoint.IsValid() {
		return k.String() + " untranslated"
	}
	return k.String() + " to " + f.Endpoint.String()
}

// Config says how a Table works. Only Log must be set.
type Config struct {
	Log *slog.Logger
	// Zone is the conntrack zone whose flows are meant; others are never touched.
	Zone uint16
	// NodePort reports whether NodePorts are served on an address of this machine. It
	// is asked about untranslated flows only. Nil: on all but loopback addresses.
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
	set, err := newSet(flows, t.cfg)
	if err != nil {
		return 0, fmt.Errorf("delete flows: %w", err)
	}
	if len(flows) == 0 {
		return 0, nil
	}
	if deleted, err = t.delete(ctx, flows, set); err != nil {
		t.Close() // answers may wait in it
		return deleted, fmt.Errorf("delete flows: %w", err)
	}
	return deleted, nil
}

func (t *Table) delete(ctx context.Context, flows []Flow, set *set) (deleted int, err error) {
	if t.open == nil {
		if t.open, err = newSocket(); err != nil {
			return 0, err
		}
	}
	entries, err := t.open.count(ctx)
	if err != nil || entries == 0 {
		return 0, err
	}
	for todo := plan(flows, t.limit(entries)); len(todo) > 0; {
		if t.deaf {
			todo = merge(todo) // every dump is whole: once is enough
		}
		n, again, err := t.sweep(ctx, todo[0], set)
		deleted += n
		if err != nil {
			return deleted, err
		}
		if !again {
			todo = todo[1:]
		}
	}
	return deleted, nil
}

// sweep deletes the flows of set among those that f finds. It is to be done again if
// the kernel refused the filter.
func (t *Table) sweep(ctx context.Context, f filter, set *set) (deleted int, again bool, err error) {
	ask := t.ask
	if t.deaf {
		ask.filter = 0
	}
	var wrong []entry
	err = t.open.dump(ctx, f.request(ask), func(msg []byte) {
		e, ok := parse(msg)
		if !ok {
			return
		}
		if !t.deaf && !f.admits(e) {
			t.noFilter(nil)
		}
		if set.has(e) {
			wrong = append(wrong, e.clone())
		}
	})
	switch {
	case !t.deaf && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
		t.noFilter(err)
		return 0, true, nil
	case err != nil:
		return 0, false, fmt.Errorf("list: %w", err)
	}
	deleted, err = t.open.delete(ctx, wrong)
	t.cfg.Log.Debug("deleted flows", "filter", f, "found", len(wrong), "deleted", deleted)
	return deleted, false, err
}

// noFilter remembers that the kernel does not search for us. A kernel before 5.8 passes
// over attributes that it does not know, and sends everything.
func (t *Table) noFilter(err error) {
	t.deaf = true
	t.cfg.Log.Warn("the kernel cannot search its table of flows; it is read whole for every change (5.8 and later can)", "error", err)
}
