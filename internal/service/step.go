package service

import (
	"iter"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// Step returns a table on the way from one table to another: it differs from from in all
// Services that changed little, and in as much of those that changed much that all of it is
// about most frontends and endpoints. Where that is everything it returns to. So a change of
// thousands of frontends holds up no other change for long: the caller programs one step
// after the other.
//
// Of a Service on the way, the first frontends are those of to, by key, and the rest those
// of from. A frontend of which more than most changes by itself is split: it has some
// endpoints of either, see splitRoute. One Service in each step may do that, by turns of inARow steps: the
// caller counts turn; if it is negative, none may. No two frontends of a step have the same key: one that a Service gives up late,
// another gets late. Every Service that changed gets on, if not with each step.
func Step(from, to *Table, most, turn int) *Table { return step(from, to, most, turn, false) }

// StepLists is Step for a mechanism that writes all endpoints of a frontend with affinity, or in turns, when one
// changes. Such a frontend of very many is split into so much as it has already, if that is more: so all that
// is written is twice as much as there is, and not the square of it.
func StepLists(from, to *Table, most, turn int) *Table { return step(from, to, most, turn, true) }

func step(from, to *Table, most, turn int, lists bool) *Table {
	var big []entryChange
	total := 0
	for c := range entryChanges(from, to) {
		if w := c.weight(most); w > most/10 {
			big = append(big, c)
			total += w
		}
	}
	if total <= most {
		return to
	}
	share := max(most/len(big), 1)
	mixed := make(map[api.Name]*Entry, len(big))
	var late []lateFrontend
	wide := -1
	if turn >= 0 {
		wide = pieces * most
	}
	for i := range big {
		c := big[(max(turn, 0)/inARow+i)%len(big)]
		mixed[c.name()], wide = c.mix(share, most, wide, lists, &late)
	}
	keepLate(mixed, from, to, late)
	return to.with(mixed)
}

// longest returns how many endpoints the longer route of a frontend has; of nil 0.
func (f *Frontend) longest() int {
	if f == nil {
		return 0
	}
	return max(len(f.Internal.Endpoints), len(f.External.Endpoints))
}

// writtenWhole reports whether StepLists' mechanism writes all endpoints of a frontend, which may be nil, when one changes.
func (f *Frontend) writtenWhole() bool {
	return f != nil && (f.Affinity > 0 || f.Balance == RoundRobin)
}

// A lateFrontend is one that a Service has and will give up in a later step.
type lateFrontend struct {
	key   Key
	owner api.Name
}

// keepLate leaves out of the entries of a step what other Services give up late: no two may have
// the same key.
func keepLate(mixed map[api.Name]*Entry, from, to *Table, late []lateFrontend) {
	if len(late) == 0 {
		return
	}
	next, gained := map[api.Name]*Entry{}, map[Key]api.Name{} // few: this step's
	for c := range entryChanges(from, to) {
		e, ok := mixed[c.name()]
		if !ok {
			e = c.new
		}
		next[c.name()] = e
		for old, new := range (entryChange{c.old, e}).frontends() {
			if old == nil {
				gained[new.Key()] = c.name()
			}
		}
	}
	taken := map[api.Name]map[Key]struct{}{}
	for _, f := range late {
		if n, ok := gained[f.key]; ok && n != f.owner {
			if taken[n] == nil {
				taken[n] = map[Key]struct{}{}
			}
			taken[n][f.key] = struct{}{}
		}
	}
	for n, keys := range taken {
		mixed[n] = next[n].without(keys)
	}
}

// An entryChange is an entry in two tables; one of them may be nil.
type entryChange struct{ old, new *Entry }

func (c entryChange) name() api.Name {
	if c.new != nil {
		return c.new.Name
	}
	return c.old.Name
}

// frontends yields the frontends of both entries side by side, by key.
func (c entryChange) frontends() iter.Seq2[*Frontend, *Frontend] {
	return merged(c.old.frontends(), c.new.frontends(), func(a, b *Frontend) int { return a.Key().Compare(b.Key()) })
}

// weight returns how much changes: frontends and the slots of their endpoints. It stops at a bit more than
// most.
func (c entryChange) weight(most int) (sum int) {
	for old, new := range c.frontends() {
		if sum += changeWeight(old, new); sum > most {
			break
		}
	}
	return sum
}

// changeWeight returns how much there is to write for a frontend.
func changeWeight(old, new *Frontend) int {
	switch {
	case old == new, old.Equal(new):
		return 0
	case old == nil, new == nil:
		f := old
		if f == nil {
			f = new
		}
		return 1 + len(f.Sources) + routesWeight(&Frontend{Internal: &Route{}, External: &Route{}, Balance: f.Balance}, f)
	}
	sources := 0
	if !slices.Equal(old.Sources, new.Sources) {
		sources = len(old.Sources) + len(new.Sources)
	}
	return 1 + sources + routesWeight(old, new)
}

func routesWeight(old, new *Frontend) int {
	weight := func(was, is *Route) int {
		return slotsWeight(differences(was.Endpoints, is.Endpoints), was.Endpoints, is.Endpoints, old.Balance, new.Balance)
	}
	w := weight(old.Internal, new.Internal)
	if new.Internal != new.External || old.Internal != old.External {
		w += weight(old.External, new.External)
	}
	return w
}

// differences counts the endpoints that one list has and the other has not.
func differences(a, b []Endpoint) (n int) {
	for range Differing(a, b) {
		n++
	}
	return n
}

// Differing yields what differs between two lists of endpoints, by address: nil for what is in the
// other only.
func Differing(was, is []Endpoint) iter.Seq2[*Endpoint, *Endpoint] {
	return func(yield func(old, new *Endpoint) bool) {
		_, was, is, _ := apart(was, is)
		for old, new := range sideBySide(was, is) {
			if (old == nil || new == nil || *old != *new) && !yield(old, new) {
				return
			}
		}
	}
}

// apart cuts off what two lists have in common at the begin and at the end: nearly all, where
// a list of tens of thousands changes step by step.
func apart(a, b []Endpoint) (begin, restA, restB, end []Endpoint) {
	same, i := min(len(a), len(b)), 0
	for i < same && a[i] == b[i] {
		i++
	}
	begin, a, b = a[:i], a[i:], b[i:]
	same, i = same-i, 0
	for i < same && a[len(a)-1-i] == b[len(b)-1-i] {
		i++
	}
	return begin, a[:len(a)-i], b[:len(b)-i], a[len(a)-i:]
}

// sideBySide yields the endpoints of two lists by address; nil for what is in the other only.
func sideBySide(was, is []Endpoint) iter.Seq2[*Endpoint, *Endpoint] {
	return func(yield func(old, new *Endpoint) bool) {
		for i, k := 0, 0; i < len(was) || k < len(is); {
			var old, new *Endpoint
			d := 0
			switch {
			case k == len(is):
				d = -1
			case i == len(was):
				d = 1
			default:
				d = was[i].Addr.Compare(is[k].Addr)
			}
			if d <= 0 {
				old = &was[i]
				i++
			}
			if d >= 0 {
				new = &is[k]
				k++
			}
			if !yield(old, new) {
				return
			}
		}
	}
}

// mix returns the entry with the first changes that weigh about share; nil if nothing is left of
// it. One change that weighs more than most is split, with so much of it as piece; if piece is
// negative it waits. mix adds to late what the Service will give up in a later step, and returns
// the piece, or -1 if it was taken.
func (c entryChange) mix(share, most, piece int, lists bool, late *[]lateFrontend) (is *Entry, left int) {
	e := c.new
	if e == nil {
		e = c.old
	}
	mixed := *e
	mixed.Frontends = nil
	sum := 0
	for old, new := range c.frontends() {
		f, w := new, 0
		if sum < share { // else nobody asks: to compare all of a large Service takes long
			w = changeWeight(old, new)
		}
		part := piece
		if lists && piece > 0 && (old.writtenWhole() || new.writtenWhole()) {
			part = max(piece, old.longest())
		}
		switch {
		case sum >= share:
			f = old
		case w == 0:
		case w > most && w > part && part > 0:
			f = split(old, new, part)
			sum, piece = sum+w, -1
		case w > most && piece < 0:
			f = old
		default:
			if sum += w; w > most {
				piece = -1
			}
		}
		if f != nil {
			mixed.Frontends = append(mixed.Frontends, f)
			if new == nil {
				*late = append(*late, lateFrontend{f.Key(), c.name()})
			}
		}
	}
	if c.new == nil && len(mixed.Frontends) == 0 {
		return nil, piece
	}
	return &mixed, piece
}

// without returns the entry without the frontends of some keys.
func (e *Entry) without(keys map[Key]struct{}) *Entry {
	rest := *e
	rest.Frontends = slices.DeleteFunc(slices.Clone(e.Frontends), func(f *Frontend) bool {
		_, ok := keys[f.Key()]
		return ok
	})
	return &rest
}

// Work returns about how much Compile has to do for a Service: the ports, endpoints and
// frontends that it looks at.
func Work(svc *Service, eps []*Slice) int {
	endpoints, ports := 0, 0
	for _, s := range eps {
		endpoints += len(s.Endpoints)
		ports += len(s.Ports)
	}
	return len(svc.Ports)*(2+len(svc.ExternalIPs)+len(svc.BalancerIPs)+endpoints) + ports + endpoints + len(svc.Sources)
}
