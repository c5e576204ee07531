package gateway

import (
	"slices"
	"strings"
)

// hosts finds values by host name, the most specific pattern first. It is immutable.
type hosts[T any] struct {
	exact    map[string]T
	wildcard map[string]T // by suffix: *.example.com is .example.com
	all      T
	hasAll   bool
	// oneLabel says that a wildcard stands for exactly one label, as in an Ingress.
	oneLabel bool
}

// next returns the most specific value for a host after the position at, and its own position. The first call has at -1.
func (h *hosts[T]) next(host string, at int) (value T, pattern string, position int, ok bool) {
	if at < 0 {
		if v, ok := h.exact[host]; ok {
			return v, host, 0, true
		}
		at = 0
	}
	for i := at + 1; i < len(host) && len(h.wildcard) > 0 && (at == 0 || !h.oneLabel); i++ {
		if host[i] != '.' {
			continue
		}
		if v, ok := h.wildcard[host[i:]]; ok {
			return v, host[i:], i, true
		}
		if h.oneLabel {
			break
		}
	}
	if h.hasAll && at <= len(host) {
		return h.all, "", len(host) + 1, true
	}
	return value, "", 0, false
}

// set gives a pattern a value.
func (h *hosts[T]) set(pattern string, value T) {
	suffix, wildcard := strings.CutPrefix(pattern, "*")
	switch {
	case pattern == "":
		h.all, h.hasAll = value, true
	case wildcard:
		if h.wildcard == nil {
			h.wildcard = map[string]T{}
		}
		h.wildcard[suffix] = value
	default:
		if h.exact == nil {
			h.exact = map[string]T{}
		}
		h.exact[pattern] = value
	}
}

func (h *hosts[T]) unset(pattern string) {
	suffix, wildcard := strings.CutPrefix(pattern, "*")
	switch {
	case pattern == "":
		var zero T
		h.all, h.hasAll = zero, false
	case wildcard:
		delete(h.wildcard, suffix)
	default:
		delete(h.exact, pattern)
	}
}

// A host has the entries of one host of one listener, and finds the best one for a path. It is immutable.
//
//	exact ─→ by the whole path      patterns ─→ one after the other      prefixes ─→ by the lengths that exist, the longest first
type host struct {
	exact    map[string][]*entry
	patterns []*entry
	prefixes map[string][]*entry
	lengths  []int // of prefixes, descending
	stream   *stream
}

// newHost sorts entries into a host. over has the number of entries by route that exceed a limit and are left out.
func newHost(entries []*entry) (_ *host, over map[Ref]int) {
	slices.SortFunc(entries, func(a, b *entry) int { return a.rank.compare(&b.rank) })
	h := &host{}
	for _, e := range entries {
		switch e.path.kind {
		case byExact:
			if h.exact == nil {
				h.exact = map[string][]*entry{}
			}
			h.exact[e.path.value] = append(h.exact[e.path.value], e)
		case byPattern:
			h.patterns = append(h.patterns, e)
		default:
			if h.prefixes == nil {
				h.prefixes = map[string][]*entry{}
			}
			if h.prefixes[e.path.value] == nil && !slices.Contains(h.lengths, len(e.path.value)) {
				h.lengths = append(h.lengths, len(e.path.value))
			}
			h.prefixes[e.path.value] = append(h.prefixes[e.path.value], e)
		}
	}
	slices.SortFunc(h.lengths, func(a, b int) int { return b - a })
	return h, h.limit()
}

// find returns the entry with the best rank that a request meets; nil: none.
func (h *host) find(r Request, path string) *entry {
	for _, e := range h.exact[path] {
		if m, _ := e.missed(r, path, true); m == missNone {
			return e
		}
	}
	var best *entry
	for _, e := range h.patterns {
		if m, _ := e.missed(r, path, false); m == missNone {
			best = e
			break
		}
	}
	for _, n := range h.lengths {
		if n > len(path) {
			continue
		}
		boundary := n == len(path) || path[n] == '/'
		for _, e := range h.prefixes[path[:n]] {
			if best != nil && best.rank.compare(&e.rank) < 0 {
				break
			}
			if e.path.kind == byElements && !boundary {
				continue
			}
			if m, _ := e.missed(r, path, true); m == missNone {
				return e
			}
		}
	}
	return best
}
