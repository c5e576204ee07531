package service

import (
	"iter"
	"slices"
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
func Step(from, to *Table, most, turn int) *Table {
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
	mixed := make(map[Name]*Entry, len(big))
	late := map[Key]Name{} // what a Service has that it will give up in a later step
	wide := -1
	if turn >= 0 {
		wide = pieces * most
	}
	for i := range big {
		c := big[(max(turn, 0)/inARow+i)%len(big)]
		mixed[c.name()], wide = c.mix(share, most, wide, late)
	}
	if len(late) > 0 {
		for c := range entryChanges(from, to) {
			e, ok := mixed[c.name()]
			if !ok {
				e = c.new
			}
			if e != nil {
				mixed[c.name()] = e.without(late)
			}
		}
	}
	return to.with(mixed)
}

// An entryChange is an entry in two tables; one of them may be nil.
type entryChange struct{ old, new *Entry }

func (c entryChange) name() Name {
	if c.new != nil {
		return c.new.Name
	}
	return c.old.Name
}

// frontends yields the frontends of both entries side by side, by key.
func (c entryChange) frontends() iter.Seq2[*Frontend, *Frontend] {
	return merged(c.old.frontends(), c.new.frontends(), func(a, b *Frontend) int { return a.Key().Compare(b.Key()) })
}

// weight returns how much changes: frontends and their endpoints. It stops at a bit more than
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
		return 1 + len(f.Sources) + routesWeight(&Route{}, &Route{}, f.Internal, f.External)
	}
	sources := 0
	if !slices.Equal(old.Sources, new.Sources) {
		sources = len(old.Sources) + len(new.Sources)
	}
	return 1 + sources + routesWeight(old.Internal, old.External, new.Internal, new.External)
}

func routesWeight(oldInternal, oldExternal, internal, external *Route) int {
	w := differences(oldInternal.Endpoints, internal.Endpoints)
	if internal != external || oldInternal != oldExternal {
		w += differences(oldExternal.Endpoints, external.Endpoints)
	}
	return w
}

// differences counts the endpoints that one list has and the other has not.
func differences(a, b []Endpoint) (n int) {
	for old, new := range sideBySide(a, b) {
		if old == nil || new == nil || *old != *new {
			n++
		}
	}
	return n
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
func (c entryChange) mix(share, most, piece int, late map[Key]Name) (is *Entry, left int) {
	e := c.new
	if e == nil {
		e = c.old
	}
	mixed := *e
	mixed.Frontends = nil
	sum := 0
	for old, new := range c.frontends() {
		f, w := new, changeWeight(old, new)
		switch {
		case w == 0:
		case w > most && w > piece && piece > 0 && sum < share:
			f = split(old, new, piece)
			sum, piece = sum+w, -1
		case sum >= share || w > most && piece < 0:
			f = old
		default:
			if sum += w; w > most {
				piece = -1
			}
		}
		if f != nil {
			mixed.Frontends = append(mixed.Frontends, f)
			if new == nil {
				late[f.Key()] = c.name()
			}
		}
	}
	if c.new == nil && len(mixed.Frontends) == 0 {
		return nil, piece
	}
	return &mixed, piece
}

// without returns the entry without the frontends whose keys other Services have.
func (e *Entry) without(others map[Key]Name) *Entry {
	taken := func(f *Frontend) bool {
		owner, ok := others[f.Key()]
		return ok && owner != e.Name
	}
	if !slices.ContainsFunc(e.Frontends, taken) {
		return e
	}
	rest := *e
	rest.Frontends = slices.DeleteFunc(slices.Clone(e.Frontends), taken)
	return &rest
}

// Work returns about how much Compile has to do for a Service: the endpoints and frontends
// that it looks at.
func Work(svc *Service, eps []*Slice) int {
	endpoints := 0
	for _, s := range eps {
		endpoints += len(s.Endpoints)
	}
	return len(svc.Ports)*(2+len(svc.ExternalIPs)+len(svc.BalancerIPs)+endpoints) + endpoints + len(svc.Sources)
}
