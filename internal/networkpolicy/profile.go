package networkpolicy

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// A profile is the grants of some policies in one direction. Pods with the same policies share it.
type profile struct {
	key       string
	direction Direction
	// layers: ClusterNetworkPolicies judge, so the segments of each class cover every port (layer.go). isolated: a
	// NetworkPolicy isolates. defaults are the rules for packets that no rule matches.
	layers, isolated bool
	defaults         []RuleName
	// allAddrs and anyPod are the rules for every address, and for every pod.
	allAddrs, anyPod []int
	rules            []profileRule
	byTerm           map[*term][]int
	grants           map[Class][]Segment
	users            map[*address]bool
	// blockRules have blocks in the view of the namespace. blockClasses are the classes of the view in grants.
	space        *namespaceState
	blockRules   []int
	blockClasses map[Class]bool
	// anyNamed are rules for all pods with named ports. The numbers differ from pod to pod.
	anyNamed []int
	memo     map[string][]Segment
}

// A profileRule is a rule with its ports. names are the ports whose numbers depend on the peer.
type profileRule struct {
	id    RuleID
	tier  Tier
	ports []Segment
	names []portName
}

// updateProfiles finds the profiles of an address, and writes the changed grants.
func (c *Compiler) updateProfiles(at *address) {
	for d := range at.profiles {
		old := at.profiles[d]
		now := c.profile(Direction(d), at)
		if old == now {
			continue
		}
		at.profiles[d] = now
		c.setViewOf(Direction(d), at)
		if now != nil {
			now.users[at] = true
			for k, s := range now.grants {
				c.grant(Direction(d), Target{at.addr, k}, s)
			}
		}
		if old == nil {
			continue
		}
		for k := range old.grants {
			if now == nil || now.grants[k] == nil {
				c.grant(Direction(d), Target{at.addr, k}, nil)
			}
		}
		if delete(old.users, at); len(old.users) == 0 {
			delete(c.profiles[d], old.key)
			for _, r := range old.defaults {
				c.releaseRule(r)
			}
		}
	}
}

// grant writes the segments of a target.
func (c *Compiler) grant(d Direction, t Target, now []Segment) {
	was := c.table.Grants[d][t]
	if slices.Equal(was, now) {
		return
	}
	c.grants += len(now) - len(was)
	if len(now) == 0 {
		delete(c.table.Grants[d], t)
	} else {
		c.table.Grants[d][t] = now
	}
	note(c.changes.Grants[d], t, was, now, slices.Equal[[]Segment])
	c.changes.Revoked = c.changes.Revoked || c.table.Cluster[d][t.Local] || c.table.Isolated[d][t.Local] && !covers(now, was)
}

// covers reports whether now allows everything that was allows.
func covers(now, was []Segment) bool {
	return !slices.ContainsFunc(was, func(w Segment) bool {
		return !slices.ContainsFunc(now, func(n Segment) bool {
			return n.Proto == 0 || n.Proto == w.Proto && n.First <= w.First && w.Last <= n.Last
		})
	})
}

// profile returns the profile of an address. Nil: no policy isolates or judges it.
func (c *Compiler) profile(d Direction, at *address) *profile {
	if len(at.policies[d]) == 0 && !at.isJudged[d] {
		return nil
	}
	key, named := []byte{}, false
	for _, p := range at.policies[d] {
		sequence := uint32(p.sequence) << 1
		if p.overGrants {
			sequence++
		}
		key = binary.NativeEndian.AppendUint32(key, sequence)
		for _, r := range p.rules[d] {
			named = named || d == Ingress && slices.ContainsFunc(r.Ports, func(p Port) bool { return p.Name != "" })
		}
	}
	if named {
		key = fmt.Append(key, at.owner.Ports)
	}
	if p := c.profiles[d][string(key)]; p != nil {
		return p
	}
	p := &profile{key: string(key), direction: d, layers: at.isJudged[d], isolated: at.isIsolated[d],
		byTerm: map[*term][]int{}, grants: map[Class][]Segment{}, users: map[*address]bool{}, memo: map[string][]Segment{},
		blockClasses: map[Class]bool{}}
	if at.owner != nil {
		p.space = at.owner.namespace
	}
	for _, policy := range at.policies[d] {
		for i := range policy.rules[d] {
			if r := &policy.rules[d][i]; !r.NoPort && !policy.overGrants {
				p.add(r, policy.tier(), at.owner)
			}
		}
	}
	c.takeDefaults(p)
	switch {
	case len(at.policies[d]) == 0: // a pod that is not known
		p.set(AnyAddr, []Segment{{Last: 65535, Rule: p.unmatched()}})
	case p.layers:
		p.set(AnyAddr, p.layered(p.allAddrs, nil, AnyAddr))
		p.set(AnyPod, p.layered(merge(p.anyPod, p.allAddrs), nil, AnyPod))
	default:
		p.set(AnyAddr, p.segments(p.allAddrs))
		p.set(AnyPod, p.segments(p.anyPod))
	}
	c.grantClasses(p)
	c.grantBlocks(p)
	c.profiles[d][p.key] = p
	return p
}

// add adds a rule, with its ports on a pod.
func (p *profile) add(r *compiledRule, tier Tier, owner *pod) {
	n := len(p.rules)
	p.rules = append(p.rules, r.resolve(p.direction, tier, owner))
	if r.allAddrs {
		p.allAddrs = append(p.allAddrs, n)
	}
	if r.anyPod {
		p.anyPod = append(p.anyPod, n)
	}
	if (r.allAddrs || r.anyPod) && len(p.rules[n].names) > 0 {
		p.anyNamed = append(p.anyNamed, n)
	}
	if len(r.blocks) > 0 {
		p.blockRules = append(p.blockRules, n)
	}
	for _, t := range r.terms {
		p.byTerm[t] = append(p.byTerm[t], n)
	}
}

// resolve gives a rule its ports.
func (r *compiledRule) resolve(d Direction, tier Tier, owner *pod) profileRule {
	out := profileRule{id: r.id, tier: tier, names: r.portNames(d)}
	if len(r.Ports) == 0 {
		out.ports = []Segment{{Last: 65535, Rule: r.id}}
	}
	for _, p := range r.Ports {
		switch {
		case p.Name == "":
			out.ports = append(out.ports, Segment{p.Proto, p.First, p.Last, r.id})
		case d == Ingress:
			for _, n := range owner.Ports {
				if n.Name == p.Name && n.Proto == p.Proto {
					out.ports = append(out.ports, Segment{p.Proto, n.Number, n.Number, r.id})
				}
			}
		}
	}
	return out
}

func (p *profile) set(k Class, s []Segment) {
	if len(s) == 0 {
		delete(p.grants, k)
	} else {
		p.grants[k] = s
	}
}

// grantClasses computes the segments of a new profile for all known classes.
func (c *Compiler) grantClasses(p *profile) {
	add := func(t *term) {
		for k := range t.classes {
			if _, done := p.grants[k.number]; !done && k.refs > 0 {
				p.set(k.number, p.classSegments(k))
			}
		}
	}
	for t := range p.byTerm {
		add(t)
	}
	for _, i := range p.anyNamed {
		for _, n := range p.rules[i].names {
			add(c.terms.ports[n].term)
		}
	}
}

// classSegments returns the segments of a class. A class of named ports has segments only if a rule has one of its names.
func (p *profile) classSegments(k *class) []Segment {
	if k.named {
		return p.namedSegments(k)
	}
	var rules []int
	for _, t := range k.terms {
		rules = append(rules, p.byTerm[t]...)
	}
	if p.layers && len(rules) > 0 {
		return p.layeredClass(rules, k)
	}
	slices.Sort(rules)
	return p.segments(slices.Compact(rules))
}

// namedSegments returns the segments of a class of named ports. A rule with a name of the class decides about all
// ports, because only packets to a port with the name have the class.
func (p *profile) namedSegments(k *class) []Segment {
	if p.direction == Ingress {
		return nil // the pod itself gives the numbers: resolve
	}
	var rules []int
	for _, t := range k.terms {
		rules = append(rules, p.byTerm[t]...)
	}
	rules = merge(rules, p.anyNamed)
	named := slices.DeleteFunc(slices.Clone(rules), func(i int) bool { return !p.rules[i].isNamedIn(k) })
	switch {
	case len(named) == 0:
		return nil
	case p.layers:
		return p.layeredClass(rules, k)
	}
	return []Segment{{Last: 65535, Rule: p.rules[named[0]].id}}
}

// isNamedIn reports whether a rule has a name of a class.
func (r *profileRule) isNamedIn(k *class) bool {
	return slices.ContainsFunc(k.terms, func(t *term) bool { return slices.Contains(r.names, t.port) })
}

// segments unites the ports of some rules. Named ports do not count.
func (p *profile) segments(rules []int) []Segment {
	if len(rules) == 0 {
		return nil
	}
	var all []Segment
	var key []byte
	for _, i := range rules {
		key = binary.NativeEndian.AppendUint32(key, uint32(i))
		all = append(all, p.rules[i].ports...)
	}
	s, ok := p.memo[string(key)]
	if !ok {
		s = disjoint(all)
		p.memo[string(key)] = s
	}
	return s
}

// updateClasses writes the grants of new classes, and removes the grants of empty ones.
func (c *Compiler) updateClasses() {
	update := func(k *class) {
		for d := range c.profiles {
			for _, p := range c.profiles[d] {
				var now []Segment
				if k.refs > 0 {
					now = p.classSegments(k)
				}
				if slices.Equal(p.grants[k.number], now) {
					continue
				}
				p.set(k.number, now)
				for at := range p.users {
					c.grant(Direction(d), Target{at.addr, k.number}, now)
				}
			}
		}
	}
	for k := range c.emptyClasses {
		if k.refs == 0 && c.classes[k.key] == k {
			update(k)
			delete(c.classes, k.key)
			delete(c.classByNumber, k.number)
			for _, t := range k.terms {
				delete(t.classes, k)
			}
		}
	}
	for k := range c.newClasses {
		if k.refs > 0 {
			update(k)
		}
	}
	clear(c.emptyClasses)
	clear(c.newClasses)
}
