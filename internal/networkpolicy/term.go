package networkpolicy

import (
	"cmp"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A term is a condition on an address that rules of this node have: it is a pod's that a peer selects, it is in a
// network, or a port of the address has a name. Blocks of NetworkPolicies are in views instead (blocks.go).
type term struct {
	key      string
	sequence int
	refs     int // rules that ask

	// About pods: in one namespace, or in the namespaces of a selector.
	namespace  string
	namespaces *api.Selector
	pods       *api.Selector // nil: all
	block      *Block
	nodes      *api.Selector // addresses of the nodes that it selects
	port       portName      // ports with this name

	classes map[*class]bool // that the term includes
	used    classCount      // of those, that are in use
	changed int             // when used changed last: Compiler.passes
}

// A classCount counts classes of addresses, and of named ports.
type classCount struct{ addrs, ports int }

func (n *classCount) add(k *class, by int) {
	if k.named {
		n.ports += by
	} else {
		n.addrs += by
	}
}

func (t *term) isName() bool { return t.port.name != "" }

// A portName is a named port. Its number differs from pod to pod.
type portName struct {
	name  string
	proto api.Proto
}

// includes reports whether a term about pods includes a pod.
func (t *term) includes(p *pod) bool {
	if t.namespaces == nil {
		if t.namespace != p.namespace.name {
			return false
		}
	} else if !selectsAll(t.namespaces) && (p.namespace.object == nil || !t.namespaces.Matches(p.namespace.object.Labels)) {
		return false
	}
	return t.pods == nil || t.pods.Matches(p.Labels)
}

func compareTerms(a, b *term) int { return cmp.Compare(a.sequence, b.sequence) }

// A termIndex has the terms of the rules that count.
type termIndex struct {
	byKey       map[string]*term
	sequence    int
	byNamespace map[string]map[*term]bool // about pods of one namespace
	wide        map[*term]bool            // about pods of several
	networks    map[*term]bool            // about networks and nodes
	namedBlocks map[*term]bool            // blocks of NetworkPolicies, about named ports only
	ports       map[portName]*portUse
	newTerms    map[*term]bool // not yet answered for any pod
	stale       map[*term]bool // without a rule, may be
	// freshPorts are names that other pods than before need.
	freshPorts      map[portName]bool
	networksChanged bool
	nodes           int // how many of networks are about nodes
}

// A portUse is a named port in egress rules. The pods of its terms need the name, or all pods if anyPod is not 0.
type portUse struct {
	term   *term
	anyPod int
	terms  map[*term]int
}

// needs reports whether a rule with the name includes a pod with some terms.
func (u *portUse) needs(terms []*term) bool {
	return u != nil && (u.anyPod > 0 || slices.ContainsFunc(terms, func(t *term) bool { return u.terms[t] > 0 }))
}

func newTermIndex() termIndex {
	return termIndex{
		byKey: map[string]*term{}, byNamespace: map[string]map[*term]bool{}, wide: map[*term]bool{},
		networks: map[*term]bool{}, namedBlocks: map[*term]bool{},
		ports: map[portName]*portUse{}, newTerms: map[*term]bool{}, stale: map[*term]bool{}, freshPorts: map[portName]bool{},
	}
}

// peer returns the term for a peer, with one reference more.
func (x *termIndex) peer(namespace string, p *Peer) *term {
	t := &term{block: p.Block, pods: p.Pods, namespaces: p.Namespaces, nodes: p.Nodes}
	switch {
	case p.Nodes != nil:
		t.key = "nodes|" + p.Nodes.String()
	case p.Block != nil:
		t.key = "network|" + blockKey(p.Block)
	case p.Namespaces == nil:
		t.namespace = namespace
		t.key = "own|" + namespace + "|" + selectorKey(p.Pods)
	default:
		t.key = "wide|" + p.Namespaces.String() + "|" + selectorKey(p.Pods)
	}
	return x.add(t)
}

func selectorKey(s *api.Selector) string {
	if s == nil {
		return ""
	}
	return s.String()
}

// selectsAll reports whether a selector selects all objects.
func selectsAll(s *api.Selector) bool { return len(s.Requirements) == 0 }

func (x *termIndex) add(t *term) *term {
	if known := x.byKey[t.key]; known != nil {
		known.refs++
		return known
	}
	x.sequence++
	t.sequence, t.refs, t.classes = x.sequence, 1, map[*class]bool{}
	x.byKey[t.key] = t
	switch {
	case t.block != nil && t.namespace != "":
		x.namedBlocks[t] = true
	case t.block != nil || t.nodes != nil:
		x.networks[t], x.networksChanged = true, true
		if t.nodes != nil {
			x.nodes++
		}
	case t.port.name != "":
	case t.namespaces != nil:
		x.wide[t], x.newTerms[t] = true, true
	default:
		if x.byNamespace[t.namespace] == nil {
			x.byNamespace[t.namespace] = map[*term]bool{}
		}
		x.byNamespace[t.namespace][t], x.newTerms[t] = true, true
	}
	return t
}

func (x *termIndex) release(t *term) {
	if t.refs--; t.refs == 0 {
		x.stale[t] = true
	}
}

// namedBlock returns the term for a block of a rule with named ports, with one reference more.
func (x *termIndex) namedBlock(namespace string, b *Block) *term {
	return x.add(&term{key: "block|" + namespace + "|" + blockKey(b), namespace: namespace, block: b})
}

// usePort counts a rule with a named port, and returns the term for the name.
func (x *termIndex) usePort(n portName, r *compiledRule) *term {
	t := x.add(&term{key: "port|" + n.name + "|" + n.proto.String(), port: n})
	u := x.ports[n]
	if u == nil {
		u = &portUse{term: t, terms: map[*term]int{}}
		x.ports[n] = u
	}
	x.countPort(u, r, 1)
	return t
}

// dropPort is the inverse of usePort.
func (x *termIndex) dropPort(n portName, r *compiledRule) {
	u := x.ports[n]
	x.countPort(u, r, -1)
	x.release(u.term)
}

func (x *termIndex) countPort(u *portUse, r *compiledRule, by int) {
	change := func(was, now int) {
		if (was == 0) != (now == 0) {
			x.freshPorts[u.term.port] = true
		}
	}
	if r.anyPod || r.allAddrs {
		u.anyPod += by
		change(u.anyPod-by, u.anyPod)
	}
	for _, t := range r.terms {
		was := u.terms[t]
		if u.terms[t] = was + by; was+by == 0 {
			delete(u.terms, t)
		}
		change(was, was+by)
	}
}

// resolve removes the terms without rules. It returns them, and the new terms that no pod has been compared with.
func (x *termIndex) resolve() (fresh, stale map[*term]bool) {
	stale = map[*term]bool{}
	for t := range x.stale {
		if t.refs > 0 {
			continue
		}
		stale[t] = true
		delete(x.byKey, t.key)
		delete(x.newTerms, t)
		delete(x.wide, t)
		delete(x.namedBlocks, t)
		if t.isName() {
			delete(x.ports, t.port)
		}
		delete(x.byNamespace[t.namespace], t)
		if len(x.byNamespace[t.namespace]) == 0 {
			delete(x.byNamespace, t.namespace)
		}
		if x.networks[t] {
			delete(x.networks, t)
			x.networksChanged = true
			if t.nodes != nil {
				x.nodes--
			}
		}
	}
	fresh = x.newTerms
	x.newTerms, x.stale = map[*term]bool{}, map[*term]bool{}
	return fresh, stale
}

// updateTerms compares all pods with the fresh terms, removes the stale terms, and compares pods that changed with all
// terms.
func (c *Compiler) updateTerms(fresh, stale map[*term]bool) {
	ports := c.terms.freshPorts
	c.terms.freshPorts = map[portName]bool{}
	wide, own := map[*term]bool{}, map[string][]*term{}
	for t := range fresh {
		if t.namespaces != nil {
			wide[t] = true
		} else {
			own[t.namespace] = append(own[t.namespace], t)
		}
	}
	if len(ports) > 0 || len(wide) > 0 || len(stale) > 0 || len(own) > 0 {
		for _, p := range c.pods {
			if slices.ContainsFunc(p.Ports, func(port api.NamedPort) bool { return ports[portName{port.Name, port.Proto}] }) {
				c.dirtyAddrsOf(p)
			}
			if !c.dirtyPods[p] {
				c.amendTerms(p, wide, own[p.namespace.name], stale)
			}
		}
	}
	for p := range c.dirtyPods {
		c.setTerms(p, c.termsOf(p))
	}
	clear(c.dirtyPods)
}

// amendTerms changes the terms of a pod that is unchanged itself.
func (c *Compiler) amendTerms(p *pod, wide map[*term]bool, own []*term, stale map[*term]bool) {
	var more []*term
	for t := range wide {
		if t.includes(p) {
			more = append(more, t)
		}
	}
	for _, t := range own {
		if t.includes(p) {
			more = append(more, t)
		}
	}
	gone := len(stale) > 0 && slices.ContainsFunc(p.terms, func(t *term) bool { return stale[t] })
	if len(more) == 0 && !gone {
		return
	}
	for _, t := range p.terms {
		if !stale[t] {
			more = append(more, t)
		}
	}
	c.setTerms(p, more)
}

// termsOf returns all terms that include a pod.
func (c *Compiler) termsOf(p *pod) (all []*term) {
	for t := range c.terms.byNamespace[p.namespace.name] {
		if t.includes(p) {
			all = append(all, t)
		}
	}
	for t := range c.terms.wide {
		if t.includes(p) {
			all = append(all, t)
		}
	}
	return all
}

func (c *Compiler) setTerms(p *pod, terms []*term) {
	slices.SortFunc(terms, compareTerms)
	terms = slices.Compact(terms)
	if slices.Equal(p.terms, terms) {
		return
	}
	p.terms = terms
	c.dirtyAddrsOf(p)
}

// dirtyAddrsOf marks the addresses of a pod.
func (c *Compiler) dirtyAddrsOf(p *pod) {
	for _, a := range p.Addrs {
		c.dirtyAddrs[c.addrs[a]] = true
	}
	for at := range c.sandboxes[p.Name] {
		c.dirtyAddrs[at] = true
	}
}
