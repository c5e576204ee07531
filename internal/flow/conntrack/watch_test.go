package conntrack

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestWatch: a Watcher hears of a new entry and of its end, with the same addresses and id.
func TestWatch(t *testing.T) {
	t.Parallel()
	ns := testnet.NewNamespace(t, "node")
	w := newWorld(t, ns, Config{})
	var watch *Watcher
	if err := ns.Do(func() (err error) { watch, err = Watch(); return err }); err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	one := want{proto: 17, client: netip.MustParseAddrPort("10.9.9.9:4000"), to: netip.MustParseAddrPort("10.96.0.10:53"), by: netip.MustParseAddrPort("10.244.1.5:53")}
	w.create(one)
	if e, there, err := w.get(one.client, one.to); err != nil || !there || e.Endpoint() != one.by {
		t.Errorf("found %+v, %v, %v", e, there, err)
	}
	if _, there, err := w.get(one.client, one.by); err != nil || there {
		t.Errorf("found a connection that nobody made: %v, %v", there, err)
	}
	if n := w.delete(flow.Flow{Proto: one.proto, Frontend: one.to, Endpoint: one.by}); n != 1 {
		t.Fatalf("%d deleted", n)
	}
	var heard []Change
	ids := map[uint32]bool{}
	if err := watch.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 1<<16); !slices.Contains(heard, Destroyed); {
		err := watch.Next(buf, func(c Change, e Entry) {
			if e.Client() == one.client && e.Frontend() == one.to && e.Endpoint() == one.by {
				heard, ids[e.ID()] = append(heard, c), true
			}
		})
		if err != nil {
			t.Fatalf("heard %v, then %v", heard, err)
		}
	}
	if heard[0] != Created || len(ids) != 1 {
		t.Errorf("heard %v with ids %v", heard, ids)
	}
}

func (w *world) get(client, frontend netip.AddrPort) (e Entry, there bool, err error) {
	doing := w.ns.Do(func() error {
		e, there, err = w.Get(w.t.Context(), 17, client, frontend)
		return nil
	})
	return e, there, errors.Join(doing, err)
}

// FuzzChanges: no datagram makes the reader read beyond it.
func FuzzChanges(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789"))
	f.Fuzz(func(_ *testing.T, b []byte) { _ = changes(b, func(Change, Entry) {}) })
}
