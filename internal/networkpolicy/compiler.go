package networkpolicy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Compiler keeps the table of one node up to date. Tell it what changed, then call Compile.
// It belongs to one goroutine; the table that it returns is its own, and changes with the
// next Compile.
type Compiler struct {
	node   string
	pods   map[api.Name]*pod
	spaces map[string]*space
	addrs  map[netip.Addr]*address
	terms  termIndex
	// classes are those of pods and blocks, by their terms, and by number.
	classes map[string]*class
	numbers map[Class]*class
	blocks  []blockRange
	// profiles of each direction, by what makes them.
	profiles [2]map[string]*profile
	rules    map[RuleName]*ruleUse
	sequence int               // of policies
	cluster  []*compiledPolicy // ClusterNetworkPolicies, in the order in which they decide
	nodes    map[string]*Node
	limits   limits
	used     map[*compiledPolicy]bool // that isolate a pod of this node
	problems map[api.Name]string
	grants   int // segments in the table
	// sandboxes are addresses of sandboxes by their pods.
	sandboxes map[api.Name]map[*address]bool

	table   *Table
	changes *Changes

	// What the next Compile looks at.
	dirtyPods   map[*pod]bool     // their terms
	dirtyAddrs  map[*address]bool // whose they are, and their classes
	dirtySpaces map[*space]bool   // which policies select whom
	// dirtyCluster: which ClusterNetworkPolicies select whom.
	dirtyCluster bool
	bornClasses  map[*class]bool // since the last Compile
	goneClasses  map[*class]bool // no address has them any more
}

// A pod is a Pod with the terms that include it, sorted.
type pod struct {
	*api.Pod
	space *space
	terms []*term
}

// A space is a namespace with what is in it. Its object may not be known.
type space struct {
	name     string
	object   *api.Namespace
	pods     map[*pod]bool
	policies map[string]*compiledPolicy
	sorted   []*compiledPolicy // policies by name, those that are over a limit last; nil: to be sorted
	// retained are policies that were deleted before the pods of a namespace that is being
	// deleted (CVE-2024-7598): they count as long as pods are there.
	retained map[string]bool
}

// An address is one that pods have, or a sandbox.
type address struct {
	addr    netip.Addr
	owners  []*pod
	sandbox *Sandbox
	owner   *pod // of owners, that which counts; nil: none, or a sandbox whose pod is not known
	class   *class
	// policies are those that isolate or judge a pod of this node, in each direction, in the order
	// in which they decide, and profiles what they grant. A pod that is not known has none, and is
	// isolated.
	isolated, cluster [2]bool
	policies          [2][]*compiledPolicy
	profiles          [2]*profile
}

// New returns a Compiler for a node.
func New(node string) *Compiler {
	return &Compiler{
		node: node, pods: map[api.Name]*pod{}, spaces: map[string]*space{}, addrs: map[netip.Addr]*address{},
		terms: newTermIndex(), classes: map[string]*class{}, numbers: map[Class]*class{},
		profiles: [2]map[string]*profile{{}, {}}, rules: map[RuleName]*ruleUse{},
		limits: limits{MaxPeers, MaxGrants}, used: map[*compiledPolicy]bool{}, problems: map[api.Name]string{},
		sandboxes: map[api.Name]map[*address]bool{}, nodes: map[string]*Node{},
		table: newTable(), changes: newChanges(),
		dirtyPods: map[*pod]bool{}, dirtyAddrs: map[*address]bool{}, dirtySpaces: map[*space]bool{},
		bornClasses: map[*class]bool{}, goneClasses: map[*class]bool{},
	}
}

func (c *Compiler) space(name string) *space {
	s := c.spaces[name]
	if s == nil {
		s = &space{name: name, pods: map[*pod]bool{}, policies: map[string]*compiledPolicy{}, retained: map[string]bool{}}
		c.spaces[name] = s
	}
	return s
}

// forget removes a space that has nothing in it.
func (c *Compiler) forget(s *space) {
	if s.object == nil && len(s.pods) == 0 && len(s.policies) == 0 {
		delete(c.spaces, s.name)
	}
}

// SetPod tells what a pod is; nil: there is none of that name.
func (c *Compiler) SetPod(name api.Name, object *api.Pod) {
	old := c.pods[name]
	if old != nil {
		for _, a := range old.Addrs {
			c.disown(a, old)
		}
		delete(old.space.pods, old)
		delete(c.dirtyPods, old)
	}
	if object == nil {
		delete(c.pods, name)
		if old != nil {
			c.release(old.space)
			c.forget(old.space)
		}
	} else {
		p := &pod{Pod: object, space: c.space(name.Namespace)}
		c.pods[name] = p
		p.space.pods[p] = true
		c.dirtyPods[p] = true
		for _, a := range object.Addrs {
			at := c.address(a)
			at.owners = append(at.owners, p)
		}
		c.release(p.space)
	}
	for at := range c.sandboxes[name] {
		c.dirtyAddrs[at] = true
	}
}

// address returns what is known of an address, and lets Compile look at it.
func (c *Compiler) address(a netip.Addr) *address {
	at := c.addrs[a]
	if at == nil {
		at = &address{addr: a}
		c.addrs[a] = at
	}
	c.dirtyAddrs[at] = true
	return at
}

func (c *Compiler) disown(a netip.Addr, p *pod) {
	at := c.address(a)
	at.owners = slices.DeleteFunc(at.owners, func(o *pod) bool { return o == p })
	if at.owner == p {
		at.owner = nil
	}
}

// SetNamespace tells what a namespace is; nil: there is none of that name.
func (c *Compiler) SetNamespace(name string, object *api.Namespace) {
	s := c.space(name)
	s.object = object
	for p := range s.pods {
		c.dirtyPods[p] = true
	}
	if len(c.cluster) > 0 {
		c.dirtySpaces[s] = true
	}
	c.release(s)
	c.forget(s)
}

// SetPolicy tells what a policy is; nil: there is none of that name.
func (c *Compiler) SetPolicy(name api.Name, object *Policy) {
	s := c.space(name.Namespace)
	old := s.policies[name.Name]
	if object == nil {
		if old != nil {
			s.retained[name.Name] = true
			c.release(s)
		}
		c.forget(s)
		return
	}
	delete(s.retained, name.Name)
	c.replacePolicy(s, name.Name, c.newPolicy(object))
}

// release ends the policies of a namespace that were deleted, unless the namespace is being
// deleted and has pods with addresses.
func (c *Compiler) release(s *space) {
	if len(s.retained) == 0 {
		return
	}
	if s.object != nil && s.object.Terminating {
		for p := range s.pods {
			if len(p.Addrs) > 0 {
				return
			}
		}
	}
	for name := range s.retained {
		c.replacePolicy(s, name, nil)
	}
	clear(s.retained)
}

func (c *Compiler) replacePolicy(s *space, name string, p *compiledPolicy) {
	if s.policies[name] = p; p == nil {
		delete(s.policies, name)
	}
	s.sorted = nil
	delete(c.problems, api.Name{Namespace: s.name, Name: name})
	c.dirtySpaces[s] = true
}

// SetSandbox tells which pod of this node the CNI plugin has given an address; nil: none any
// more.
func (c *Compiler) SetSandbox(a netip.Addr, sandbox *Sandbox) {
	at := c.address(a)
	var was, is Sandbox
	if at.sandbox != nil {
		was = *at.sandbox
		if delete(c.sandboxes[was.Pod], at); len(c.sandboxes[was.Pod]) == 0 {
			delete(c.sandboxes, was.Pod)
		}
	}
	at.sandbox = nil
	delete(c.table.Sandboxes, a)
	if sandbox != nil {
		is = *sandbox
		at.sandbox = &is
		if c.sandboxes[is.Pod] == nil {
			c.sandboxes[is.Pod] = map[*address]bool{}
		}
		c.sandboxes[is.Pod][at] = true
		c.table.Sandboxes[a] = is
	}
	note(c.changes.Sandboxes, a, was, is, equalValues)
}

// Compile brings the table up to date and returns it, with what differs since Take.
func (c *Compiler) Compile() (*Table, *Changes) {
	for at := range c.dirtyAddrs {
		c.chooseOwner(at)
	}
	subjects := c.findSubjects()
	fresh, stale := c.terms.resolve()
	c.updateTerms(fresh, stale)
	if c.terms.blocksChanged {
		c.terms.blocksChanged = false
		c.updateBlocks()
	}
	for at := range c.dirtyAddrs {
		c.classify(at)
	}
	clear(c.dirtyAddrs)
	if len(subjects)+len(c.bornClasses)+len(c.goneClasses) > 0 {
		for at := range c.limitGrants() {
			subjects[at] = true
		}
	}
	for at := range subjects {
		c.updateProfiles(at)
	}
	c.updateClasses()
	return c.table, c.changes
}

// Take says that the changes up to now are the consumer's: the next ones begin.
func (c *Compiler) Take() { c.changes = newChanges() }

// chooseOwner finds the pod that counts at an address: that of the sandbox, else the newest.
func (c *Compiler) chooseOwner(at *address) {
	at.owner = nil
	if s := at.sandbox; s != nil {
		if p := c.pods[s.Pod]; p != nil && !p.HostNetwork && (s.UID == "" || s.UID == p.UID) {
			at.owner = p
		}
		return
	}
	for _, p := range at.owners {
		if o := at.owner; o == nil || p.Created.After(o.Created) || p.Created.Equal(o.Created) && p.Name.Compare(o.Name) > 0 {
			at.owner = p
		}
	}
}

// findSubjects returns the addresses whose policies must be looked at, and looks at them.
func (c *Compiler) findSubjects() map[*address]bool {
	subjects := map[*address]bool{}
	for at := range c.dirtyAddrs {
		subjects[at] = true
	}
	if len(c.dirtySpaces) > 0 || c.dirtyCluster {
		for s := range c.dirtySpaces {
			c.limitPeers(s)
		}
		for _, at := range c.addrs {
			if c.local(at) && (c.dirtyCluster || at.owner != nil && c.dirtySpaces[at.owner.space]) {
				subjects[at] = true
			}
		}
		clear(c.dirtySpaces)
		c.dirtyCluster = false
	}
	for at := range subjects {
		c.selectPolicies(at)
	}
	return subjects
}

// local reports whether an address is a pod's of this node.
func (c *Compiler) local(at *address) bool {
	return at.sandbox != nil || at.owner != nil && at.owner.Node == c.node
}

// selectPolicies finds the policies that isolate or judge an address, and lets their terms count.
func (c *Compiler) selectPolicies(at *address) {
	for d := range at.policies {
		var now []*compiledPolicy
		unknown := at.sandbox != nil && at.owner == nil
		isolated, cluster := unknown, unknown && Direction(d) == Egress && c.judgesEgress()
		if c.local(at) && at.owner != nil {
			now = at.owner.space.selecting(at.owner.Labels, Direction(d), len(at.policies[d])+1)
			isolated = len(now) > 0
			now = c.addClusterPolicies(at.owner, Direction(d), now)
			cluster = slices.ContainsFunc(now, func(p *compiledPolicy) bool { return p.cluster != nil })
		}
		for _, p := range now {
			c.use(p, Direction(d))
		}
		for _, p := range at.policies[d] {
			c.unuse(p, Direction(d))
		}
		at.policies[d] = now
		c.isolate(at, isolated, &at.isolated[d], c.table.Isolated[d], c.changes.Isolated[d])
		c.isolate(at, cluster, &at.cluster[d], c.table.Cluster[d], c.changes.Cluster[d])
	}
}

// selecting returns the policies that isolate a pod with these labels in a direction, by name. Of those that are
// over a limit one is enough: they allow nothing. There are about so many.
func (s *space) selecting(labels map[string]string, d Direction, about int) []*compiledPolicy {
	all := make([]*compiledPolicy, 0, about)
	for _, p := range s.inOrder() {
		if p.object.Isolates[d] && p.object.Selector.Matches(labels) {
			if all = append(all, p); p.overPeers {
				slices.SortFunc(all, func(a, b *compiledPolicy) int { return a.name.Compare(b.name) })
				break
			}
		}
	}
	return all
}

// inOrder returns the policies of a namespace as selecting looks at them.
func (s *space) inOrder() []*compiledPolicy {
	if s.sorted == nil {
		s.sorted = slices.SortedFunc(maps.Values(s.policies), func(a, b *compiledPolicy) int {
			if a.overPeers != b.overPeers {
				if b.overPeers {
					return -1
				}
				return 1
			}
			return a.name.Compare(b.name)
		})
	}
	return s.sorted
}

// isolate notes whether an address is one of those that are isolated, or judged.
func (c *Compiler) isolate(at *address, now bool, was *bool, table map[netip.Addr]bool, changes map[netip.Addr]Change[bool]) {
	if *was == now {
		return
	}
	note(changes, at.addr, *was, now, equalValues)
	if *was = now; now {
		table[at.addr] = true
		c.changes.Revoked = true
	} else {
		delete(table, at.addr)
	}
}
