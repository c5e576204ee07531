package networkpolicy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// A term is a condition on an address that rules of this node have. The address is a pod that a peer selects, or is in
// a block, or belongs to a pod that gives a port name a number.
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
	// About a port: the number that pods give to the name.
	port   portName
	number uint16

	classes map[*class]bool // that the term includes
	used    int             // of those, that an address has
}

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
	blocks      map[*term]bool            // also terms about nodes
	ports       map[portName]*portUse
	newTerms    map[*term]bool // not yet answered for any pod
	stale       map[*term]bool // without a rule, may be
	// freshPorts are names that came into use or went out of use.
	freshPorts    map[portName]bool
	blocksChanged bool
	nodes         int // how many of blocks are about nodes
}

// A portUse is a named port that rules use, with the numbers that pods give to it.
type portUse struct {
	refs    int
	numbers map[uint16]*term
}

func newTermIndex() termIndex {
	return termIndex{
		byKey: map[string]*term{}, byNamespace: map[string]map[*term]bool{}, wide: map[*term]bool{}, blocks: map[*term]bool{},
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
		except := make([]string, len(p.Block.Except))
		for i, e := range p.Block.Except {
			except[i] = e.String()
		}
		slices.Sort(except)
		t.key = "block|" + p.Block.CIDR.String() + "|" + strings.Join(except, ",")
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
	case t.block != nil || t.nodes != nil:
		x.blocks[t], x.blocksChanged = true, true
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

// usePort and dropPort count the rules with a named port.
func (x *termIndex) usePort(n portName) {
	u := x.ports[n]
	if u == nil {
		u = &portUse{numbers: map[uint16]*term{}}
		x.ports[n] = u
		x.freshPorts[n] = true
	}
	u.refs++
}

func (x *termIndex) dropPort(n portName) {
	if x.ports[n].refs--; x.ports[n].refs == 0 {
		x.freshPorts[n] = true
	}
}

// number returns the term for a number of a named port.
func (x *termIndex) number(n portName, number uint16) *term {
	u := x.ports[n]
	if t := u.numbers[number]; t != nil {
		return t
	}
	t := x.add(&term{key: "port|" + n.name + "|" + n.proto.String() + "|" + strconv.Itoa(int(number)), port: n, number: number})
	u.numbers[number] = t
	return t
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
		delete(x.byNamespace[t.namespace], t)
		if len(x.byNamespace[t.namespace]) == 0 {
			delete(x.byNamespace, t.namespace)
		}
		if x.blocks[t] {
			delete(x.blocks, t)
			x.blocksChanged = true
			if t.nodes != nil {
				x.nodes--
			}
		}
	}
	for n := range x.freshPorts {
		if u := x.ports[n]; u != nil && u.refs == 0 {
			for _, t := range u.numbers {
				stale[t] = true
				delete(x.byKey, t.key)
			}
			delete(x.ports, n)
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
			if !c.dirtyPods[p] {
				c.amendTerms(p, wide, own[p.namespace.name], stale, ports)
			}
		}
	}
	for p := range c.dirtyPods {
		c.setTerms(p, c.termsOf(p))
	}
	clear(c.dirtyPods)
}

// amendTerms changes the terms of a pod that is unchanged itself.
func (c *Compiler) amendTerms(p *pod, wide map[*term]bool, own []*term, stale map[*term]bool, ports map[portName]bool) {
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
	for _, port := range p.Ports {
		if n := (portName{port.Name, port.Proto}); ports[n] && c.terms.ports[n] != nil {
			more = append(more, c.terms.number(n, port.Number))
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
	for _, port := range p.Ports {
		if n := (portName{port.Name, port.Proto}); c.terms.ports[n] != nil {
			all = append(all, c.terms.number(n, port.Number))
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
	for _, a := range p.Addrs {
		c.dirtyAddrs[c.addrs[a]] = true
	}
	for at := range c.sandboxes[p.Name] {
		c.dirtyAddrs[at] = true
	}
}
