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

// A Trouble is a kind of object that cannot be read now.
type Trouble struct {
	Kind    string
	Refused bool // the API server answers, and refuses
	Err     error
	Without string // the effect; empty: the consumer waits for the kind
	Since   time.Time
}

// troubles are the kinds that cannot be read. A nil troubles keeps no entries.
type troubles struct {
	mu       sync.Mutex
	all      map[string]Trouble
	retained map[string]int // by kind: the objects that a doubted list lacks
}

// noteKept stores the number of objects that are kept although the API server's list lacks them.
func (t *troubles) noteKept(kind string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retained == nil {
		t.retained = map[string]int{}
	}
	t.retained[kind] = n
}

// Kept returns the number of objects that are kept although the API server's last lists lack them.
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

// Troubles returns the kinds that cannot be read now, sorted. An absent optional kind is not among them.
func (s *Store) Troubles() []Trouble {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.troubles.all), func(a, b Trouble) int { return cmp.Compare(a.Kind, b.Kind) })
}

// Unreadable returns the kinds that cannot be read, with each reason once; empty: all kinds can be read.
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
