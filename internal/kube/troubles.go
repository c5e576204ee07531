package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/text"
)

// A Trouble is a kind of object that the API server does not let us read now.
type Trouble struct {
	Kind    string
	Refused bool // the API server answers, and refuses
	Err     error
	Without string // what happens meanwhile; empty: the kind is waited for
	Since   time.Time
}

// troubles are what the pacers of one agent cannot read. The nil troubles keeps none.
type troubles struct {
	mu       sync.Mutex
	all      map[string]Trouble
	retained map[string]int // objects of a kind that a doubted list lacks
}

// noteKept notes how many objects of a kind are kept although the API server's list lacks them.
func (t *troubles) noteKept(kind string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retained == nil {
		t.retained = map[string]int{}
	}
	t.retained[kind] = n
}

// Kept returns how many objects are kept although the API server's last lists lack them.
func (s *Store) Kept() (n int) {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	for _, of := range s.troubles.retained {
		n += of
	}
	return n
}

func (t *troubles) note(p *pacer, err error) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	since := time.Now()
	if was, ok := t.all[p.kind]; ok {
		since = was.Since
	}
	if t.all == nil {
		t.all = map[string]Trouble{}
	}
	t.all[p.kind] = Trouble{Kind: p.kind, Refused: permanent(err), Err: text.RequestError(err), Without: p.without, Since: since}
}

func (t *troubles) clear(kind string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, kind)
}

// Troubles returns the kinds that cannot be read now, sorted. An optional kind that the API
// server does not have is no trouble.
func (s *Store) Troubles() []Trouble {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.troubles.all), func(a, b Trouble) int { return cmp.Compare(a.Kind, b.Kind) })
}

// Unreadable says which kinds cannot be read and why, each reason once. Empty: all can.
func Unreadable(all []Trouble) string {
	kinds, reasons := map[string][]string{}, []string{}
	for _, t := range all {
		why := t.Err.Error()
		if kinds[why] == nil {
			reasons = append(reasons, why)
		}
		kinds[why] = append(kinds[why], t.Kind)
	}
	for i, why := range reasons {
		reasons[i] = strings.Join(kinds[why], ", ") + ": " + why
	}
	return strings.Join(reasons, "; ")
}
