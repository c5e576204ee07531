package page

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
)

// maxGone bounds the names of removed rows. A browser that is further behind gets the whole list.
const maxGone = 4096

// A board keeps the rows, each with the version that changed it last. A reader names its version and gets the changes since
// then, so the board keeps no queue for it.
type board struct {
	mu      sync.Mutex
	version uint64
	rows    map[string]row
	gone    []removed // the oldest first
	floor   uint64    // removals up to this version are forgotten
	state   row
	changed chan struct{} // closed by the next change
}

type row struct {
	version uint64
	data    json.RawMessage
}

type removed struct {
	version uint64
	name    string
}

// An update has the changes since a version. With Reset it has all rows.
type update struct {
	Version uint64            `json:"version"`
	Reset   bool              `json:"reset,omitempty"`
	State   json.RawMessage   `json:"state,omitempty"`
	Rows    []json.RawMessage `json:"rows,omitempty"`
	Gone    []string          `json:"gone,omitempty"`
}

func (b *board) init() {
	b.rows, b.changed, b.version = map[string]row{}, make(chan struct{}), 1
	b.state = row{1, encode(State{})}
}

// encode encodes a value of this package, which cannot fail.
func encode(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// set replaces and removes rows. An equal row is no change.
func (b *board) set(rows []Service, gone []string) {
	encoded := make([]json.RawMessage, len(rows))
	for i := range rows {
		encoded[i] = encode(rows[i])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next, any := b.version+1, false
	for i, data := range encoded {
		name := rows[i].Namespace + "/" + rows[i].Name
		if !bytes.Equal(b.rows[name].data, data) {
			b.rows[name], any = row{next, data}, true
		}
	}
	for _, name := range gone {
		if _, there := b.rows[name]; there {
			delete(b.rows, name)
			b.gone, any = append(b.gone, removed{next, name}), true
		}
	}
	if over := len(b.gone) - maxGone; over > 0 {
		b.floor = b.gone[over-1].version
		b.gone = slices.Clone(b.gone[over:])
	}
	if any {
		b.tell(next)
	}
}

func (b *board) setState(s State) {
	data := encode(s)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !bytes.Equal(b.state.data, data) {
		b.state = row{b.version + 1, data}
		b.tell(b.version + 1)
	}
}

// tell wakes the readers. b.mu is held.
func (b *board) tell(version uint64) {
	b.version = version
	close(b.changed)
	b.changed = make(chan struct{})
}

// since returns the changes after a version, and a channel that the next change closes. Version 0 is a new browser's.
func (b *board) since(version uint64) (update, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := update{Version: b.version, Reset: version == 0 || version < b.floor || version > b.version}
	if u.Reset {
		version = 0
	}
	var names []string
	for name, r := range b.rows {
		if r.version > version {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	for _, name := range names {
		u.Rows = append(u.Rows, b.rows[name].data)
	}
	if b.state.version > version {
		u.State = b.state.data
	}
	for _, g := range b.gone {
		if _, back := b.rows[g.name]; !u.Reset && g.version > version && !back {
			u.Gone = append(u.Gone, g.name)
		}
	}
	return u, b.changed
}
