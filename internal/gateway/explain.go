package gateway

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// An Explanation says which rule a request gets, and why no other.
type Explanation struct {
	Decision
	// Why explains the choice of the listener, or the refusal.
	Why string
	// Candidates are all rules of the hosts that the request could have, the winner first, then in the order in which they
	// are asked.
	Candidates []Candidate
}

// A Candidate is one match of a rule.
type Candidate struct {
	Rule *Rule
	Host string // the pattern of the route's host
	// Match is the condition in words, for example "path /cart or below, method GET".
	Match string
	// Lost says why the rule does not get the request; empty: it gets it.
	Lost string
}

// maxCandidates is the number of candidates of an Explanation.
const maxCandidates = 1000

// Explain returns the fate of a request with the reasons. It asks the same predicates as Lookup.
func (t *Table) Explain(port uint16, r Request) Explanation {
	x := Explanation{Decision: t.Lookup(port, r)}
	p := t.ports[portKey{port, api.TCP}]
	if p == nil {
		x.Why = fmt.Sprintf("no Gateway and no Ingress has port %d of the gateway", port)
		return x
	}
	name := r.Host()
	l, pattern, _, ok := p.listeners.next(name, -1)
	if !ok {
		x.Why = fmt.Sprintf("no listener of %s has host %q", ownerText(p.Owner), name)
		return x
	}
	x.Why = "this is the port of all Ingresses"
	if l.Name != "" {
		x.Why = fmt.Sprintf("listener %s of %s has host %s", l.Name, ownerText(l.Owner), hostText(pattern))
	}
	if x.Outcome == Misdirected {
		x.Why += fmt.Sprintf("; the TLS handshake was for %q, which belongs to another listener or asks other certificates of clients", r.ServerName())
		return x
	}
	x.candidates(l, r)
	if x.Outcome == NoRoute && len(x.Candidates) == 0 {
		x.Why += "; no route of the listener has the host"
	}
	return x
}

// candidates lists the entries of all hosts that Lookup asks.
func (x *Explanation) candidates(l *listenerTable, r Request) {
	path := r.Path()
	var winner *entry
	var wonAt string
	for at := -1; l.hosts != nil; {
		h, pattern, next, ok := l.hosts.next(r.Host(), at)
		if !ok {
			break
		}
		for _, e := range h.entries() {
			if len(x.Candidates) == maxCandidates {
				return
			}
			c := Candidate{Rule: e.rule, Host: hostText(pattern), Match: e.text()}
			switch m, what := e.missed(r, path, false); {
			case m != missNone:
				c.Lost = lostText(m, what, r)
			case winner == nil:
				winner, wonAt = e, pattern
			case wonAt != pattern:
				c.Lost = "a rule of host " + hostText(wonAt) + " comes first, because its host is more specific"
			default:
				c.Lost = winner.rank.beats(&e.rank)
			}
			x.Candidates = append(x.Candidates, c)
		}
		if at = next; l.hosts.oneLabel && pattern != "" {
			break
		}
	}
	x.order()
}

// order puts the winner first.
func (x *Explanation) order() {
	i := slices.IndexFunc(x.Candidates, func(c Candidate) bool { return c.Lost == "" })
	if i < 0 {
		return
	}
	winner := x.Candidates[i]
	x.Candidates = append([]Candidate{winner}, slices.Delete(x.Candidates, i, i+1)...)
}

// beats says why an entry with this rank comes before another one that matches, too.
func (a *rank) beats(b *rank) string {
	switch {
	case a.class != b.class:
		return "a rule with another type of path comes first"
	case a.length != b.length:
		return "a rule with a longer path comes first"
	case a.method != b.method:
		return "a rule with a method comes first"
	case a.headers != b.headers:
		return "a rule with more headers comes first"
	case a.query != b.query:
		return "a rule with more query parameters comes first"
	case a.created != b.created:
		return "an older route comes first"
	case a.route != b.route:
		return "a route with an earlier name comes first"
	}
	return "an earlier rule of the route comes first"
}

// entries returns all entries of a host, the best rank first.
func (h *host) entries() (all []*entry) {
	all = append(all, h.patterns...)
	for _, list := range h.exact {
		all = append(all, list...)
	}
	for _, list := range h.prefixes {
		all = append(all, list...)
	}
	slices.SortStableFunc(all, func(a, b *entry) int { return a.rank.compare(&b.rank) })
	return all
}

func ownerText(owner Ref) string {
	if owner == (Ref{}) {
		return "the Ingresses"
	}
	return string(owner.Kind) + " " + owner.Name.String()
}

// hostText writes the key of a host as its pattern.
func hostText(key string) string {
	switch {
	case key == "":
		return "* (all)"
	case key[0] == '.':
		return "*" + key
	}
	return key
}

// lostText says which part of an entry a request does not meet.
func lostText(m miss, what string, r Request) string {
	switch m {
	case missPath:
		return "the path is another one"
	case missMethod:
		return "the method is " + api.Cut(r.Method(), 20)
	case missHeader:
		if value, ok := r.Header(what); ok {
			return fmt.Sprintf("header %s is %q", what, api.Cut(value, 100))
		}
		return "header " + what + " is absent"
	}
	if value, ok := r.Query(what); ok {
		return fmt.Sprintf("query parameter %s is %q", what, api.Cut(value, 100))
	}
	return "query parameter " + what + " is absent"
}

// text writes an entry's condition in words.
func (e *entry) text() string {
	var parts []string
	switch e.path.kind {
	case byExact:
		parts = append(parts, "path exactly "+e.path.value)
	case byPattern:
		parts = append(parts, "path matches "+e.path.regex.String())
	case byText:
		parts = append(parts, "path begins with "+e.path.value)
	default:
		if e.path.value == "" {
			parts = append(parts, "all paths")
		} else {
			parts = append(parts, "path "+e.path.value+" or below")
		}
	}
	if e.rank.length == lowest {
		parts[0] = "what no other rule has"
	}
	if e.method != "" {
		parts = append(parts, "method "+e.method)
	}
	for _, v := range e.headers {
		parts = append(parts, "header "+v.text())
	}
	for _, v := range e.query {
		parts = append(parts, "query parameter "+v.text())
	}
	return strings.Join(parts, ", ")
}

func (v *valueMatch) text() string {
	if v.regex != nil {
		return v.name + " matches " + v.regex.String()
	}
	return v.name + " = " + v.value
}
