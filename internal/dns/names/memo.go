package names

import (
	"cmp"
	"slices"
)

// A memo is what led to a table. The next table takes it over. Namespaces do not depend on each other until names are
// given to owners, so a change costs one namespace and its names.
type memo struct {
	objects    map[Ref]Object
	count      map[string]int // of objects, by namespace
	gateways   map[[2]string]Gateway
	namespaces map[string]namespace
	names      map[string]*owner
}

// A namespace has the claims and the problems of its objects, the oldest objects first.
type namespace struct {
	claims             []Claim
	problems, reserved []Problem
}

// An owner is the decision about one name.
type owner struct {
	claims []Claim // of all namespaces, the oldest first
	entry  *Entry
	taken  []Problem
}

func newMemo() *memo {
	return &memo{
		objects: map[Ref]Object{}, count: map[string]int{}, gateways: map[[2]string]Gateway{},
		namespaces: map[string]namespace{}, names: map[string]*owner{},
	}
}

// update brings the memo to the present objects. It returns the names that may have another owner or other addresses.
func (m *memo) update(c Cluster, cfg Config) map[string]bool {
	stale := m.stale(c)
	if len(stale) == 0 {
		return nil
	}
	objects := make(map[string][]Object, len(stale))
	for _, o := range c.Objects {
		if stale[o.Namespace] {
			objects[o.Namespace] = append(objects[o.Namespace], o)
		}
	}
	names := map[string]bool{}
	for name := range stale {
		for _, claim := range m.namespaces[name].claims {
			m.remove(claim.Name, name)
			names[claim.Name] = true
		}
		delete(m.namespaces, name)
		if len(objects[name]) == 0 {
			continue
		}
		var ns namespace
		all, problems := claims(objects[name], m.gateways, cfg.Zones)
		ns.problems = problems
		ns.claims, ns.reserved = cfg.reserve(all)
		m.namespaces[name] = ns
		for _, claim := range ns.claims {
			m.add(claim)
			names[claim.Name] = true
		}
	}
	for name := range names {
		m.decide(name)
	}
	return names
}

// stale returns the namespaces with changed objects or gateways, and remembers the present ones.
func (m *memo) stale(c Cluster) map[string]bool {
	stale, count := map[string]bool{}, make(map[string]int, len(m.count))
	for i := range c.Objects {
		o := &c.Objects[i]
		count[o.Namespace]++
		if last, ok := m.objects[o.Ref]; !ok || !last.same(o) {
			m.objects[o.Ref] = *o
			stale[o.Namespace] = true
		}
	}
	for name, n := range m.count {
		if count[name] != n {
			stale[name] = true
		}
	}
	m.count = count
	if len(stale) > 0 {
		m.forget(c, stale)
	}
	if changed := m.changedGateways(c.Gateways); len(changed) > 0 {
		for _, o := range c.Objects {
			if slices.ContainsFunc(o.Parents, func(p Parent) bool { return changed[[2]string{p.Namespace, p.Name}] }) {
				stale[o.Namespace] = true
			}
		}
	}
	return stale
}

// forget removes the objects of stale namespaces that are gone.
func (m *memo) forget(c Cluster, stale map[string]bool) {
	if len(m.objects) == len(c.Objects) {
		return
	}
	present := map[Ref]bool{}
	for _, o := range c.Objects {
		if stale[o.Namespace] {
			present[o.Ref] = true
		}
	}
	for ref := range m.objects {
		if stale[ref.Namespace] && !present[ref] {
			delete(m.objects, ref)
		}
	}
}

// changedGateways returns the gateways that are new, gone or different, and remembers the present ones.
func (m *memo) changedGateways(present []Gateway) map[[2]string]bool {
	changed, now := map[[2]string]bool{}, make(map[[2]string]Gateway, len(present))
	for _, g := range present {
		key := [2]string{g.Namespace, g.Name}
		now[key] = g
		if last, ok := m.gateways[key]; !ok || !last.same(g) {
			changed[key] = true
		}
	}
	for key := range m.gateways {
		if _, ok := now[key]; !ok {
			changed[key] = true
		}
	}
	m.gateways = now
	return changed
}

func (m *memo) remove(name, namespace string) {
	if o := m.names[name]; o != nil {
		o.claims = slices.DeleteFunc(o.claims, func(c Claim) bool { return c.By.Namespace == namespace })
	}
}

func (m *memo) add(c Claim) {
	o := m.names[c.Name]
	if o == nil {
		o = &owner{}
		m.names[c.Name] = o
	}
	o.claims = append(o.claims, c)
}

// decide gives a name to its owner.
func (m *memo) decide(name string) {
	o := m.names[name]
	if o == nil || len(o.claims) == 0 {
		delete(m.names, name)
		return
	}
	slices.SortStableFunc(o.claims, func(a, b Claim) int { return cmp.Or(cmp.Compare(a.Created, b.Created), a.By.Compare(b.By)) })
	entries, taken := Decide(o.claims)
	o.entry, o.taken = entries[name], taken
}

// problems returns the problems of all objects: what they claim, reserved names, and names of others, each from the oldest
// object on.
func (m *memo) problems() []Problem {
	var invalid, reserved, taken []Problem
	for _, n := range m.namespaces {
		invalid, reserved = append(invalid, n.problems...), append(reserved, n.reserved...)
	}
	for _, o := range m.names {
		taken = append(taken, o.taken...)
	}
	slices.SortFunc(taken, func(a, b Problem) int { return cmp.Compare(a.Message, b.Message) })
	for _, all := range [][]Problem{invalid, reserved, taken} {
		slices.SortStableFunc(all, func(a, b Problem) int {
			return cmp.Or(cmp.Compare(m.objects[a.About].Created, m.objects[b.About].Created), a.About.Compare(b.About))
		})
	}
	return slices.Concat(invalid, reserved, taken)
}

// same reports whether two objects claim the same.
func (o *Object) same(other *Object) bool {
	return o.Ref == other.Ref && o.Created == other.Created && o.Own == other.Own && o.TTL == other.TTL &&
		slices.Equal(o.Hostnames, other.Hostnames) && slices.Equal(o.Addresses, other.Addresses) &&
		slices.Equal(o.Targets, other.Targets) && slices.Equal(o.Parents, other.Parents)
}

func (g Gateway) same(other Gateway) bool {
	return slices.Equal(g.Addresses, other.Addresses) && slices.Equal(g.Targets, other.Targets) && slices.Equal(g.Listeners, other.Listeners)
}
