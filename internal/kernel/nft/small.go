package nft

import (
	"context"
	"reflect"
)

// A Small is a table with constant rules, which exists while it has elements. It writes only differences, and finds
// changes that another program made. W is the wanted content.
type Small[W any] struct {
	table *Table
	watch *Watch
	last  *W // the kernel's content; nil: not known
}

// NewSmall returns a Small for the table of that name. It does not access the kernel.
func NewSmall[W any](name string) *Small[W] {
	t := New(name)
	return &Small[W]{table: t, watch: t.Watch()}
}

// Sync makes the table hold want, which has n elements and must not change later. differences returns the writes for
// this. Without elements Sync removes the table. After an error the next Sync reads the kernel.
func (s *Small[W]) Sync(ctx context.Context, rs *Ruleset, want W, n int, differences func(context.Context, *Table) ([]Write, error)) (err error) {
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	again := false
	if s.last != nil && reflect.DeepEqual(*s.last, want) {
		if n == 0 {
			return nil
		}
		change, _, err := s.watch.Look(ctx)
		if err != nil || change == Nothing {
			return err
		}
		again = change == Rules
	}
	s.last = &want
	if n == 0 {
		s.watch.Reset()
		return s.table.Delete(ctx)
	}
	return s.watch.Keep(ctx, rs, func(context.Context) (bool, error) { return again, nil }, func(ctx context.Context) error {
		ws, err := differences(ctx, s.table)
		if err != nil {
			return err
		}
		return s.table.Commit(ctx, nil, ws)
	})
}

// Close makes the next Sync read the kernel, and frees the sockets.
func (s *Small[W]) Close() {
	s.last = nil
	s.watch.Reset()
	s.table.Close()
}

// Differences returns the writes that make sets and maps without intervals hold want: the data by key, by set. The data
// of a set's element is empty.
func (t *Table) Differences(ctx context.Context, want map[string]map[string]string, sets ...string) (ws []Write, err error) {
	for _, set := range sets {
		have := map[string]string{}
		err := t.Elements(ctx, set, func(e Element) error {
			have[string(e.Key)] = string(e.Data)
			return nil
		})
		if err != nil {
			return nil, err
		}
		for key, data := range have {
			if now, ok := want[set][key]; !ok || now != data {
				ws = append(ws, Write{Set: set, Key: []byte(key), Data: []byte(data), Del: true})
			}
		}
		for key, data := range want[set] {
			if was, ok := have[key]; !ok || was != data {
				ws = append(ws, Write{Set: set, Key: []byte(key), Data: []byte(data), Add: true})
			}
		}
	}
	return ws, nil
}
