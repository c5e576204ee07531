package networkpolicy

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Compiler keeps the table of one node up to date. Call the Set methods with the changes, then Compile. A Compiler
// belongs to one goroutine. The next Compile changes the table that it returned.
type Compiler struct {
	node       string
	pods       map[api.Name]*pod
	namespaces map[string]*namespaceState
	addrs      map[netip.Addr]*address
	terms      termIndex
	// classes of pods and networks, by the key of their terms. classByNumber also has those of views.
	classes       map[string]*class
	classByNumber map[Class]*class
	networks      []networkRange
	views         map[View]bool
	// profiles of each direction, by the policies and ports that make them.
	profiles     [2]map[string]*profile
	rules        map[RuleName]*ruleUse
	sequence     int               // of policies
	cluster      []*compiledPolicy // ClusterNetworkPolicies, in the order in which they decide
	nodes        map[string]*Node
	limits       limits
	usedPolicies map[*compiledPolicy]bool // that isolate a pod of this node
	problems     map[api.Name]string
	overPorts    map[api.Name]bool
	grants       int // segments in the table
	passes       int // how often Compile was called
	// sandboxes are the addresses of sandboxes, by pod.
	sandboxes map[api.Name]map[*address]bool

	table   *Table
	changes *Changes

	// What the next Compile looks at.
	dirtyPods       map[*pod]bool            // their terms
	dirtyAddrs      map[*address]bool        // their owner and class
	dirtyNamespaces map[*namespaceState]bool // which policies select whom
	dirtyViews      map[viewKey]bool         // the rules with blocks
	// dirtyCluster: the subjects of ClusterNetworkPolicies must be found again.
	dirtyCluster bool
	newClasses   map[*class]bool // since the last Compile
	emptyClasses map[*class]bool // no address has them any more
}

// A pod is a Pod with the terms that include it, sorted.
type pod struct {
	*api.Pod
	namespace *namespaceState
	terms     []*term
}

// A namespaceState is a namespace with its pods and policies. The object is nil if the API server has not sent it.
type namespaceState struct {
	name     string
	object   *api.Namespace
	pods     map[*pod]bool
	policies map[string]*compiledPolicy
	sorted   []*compiledPolicy // policies in the order of inOrder; nil: not sorted yet
	// retained are policies that were deleted before the pods of a namespace that is being deleted (CVE-2024-7598).
	// They count until the pods are gone.
	retained map[string]bool
	// views are the blocks of the policies for pods of this node, by direction, without those over a limit. Nil: there
	// are none. blockCosts has also the policies over a limit.
	views      [2]*blockView
	blockCosts [2]map[*compiledPolicy]*blockCost
	// costs are the elements of the used policies as of a pass. Nil: the policies or their pods changed.
	costs     map[*compiledPolicy]int
	costsPass int
}

// An address belongs to pods, or to a sandbox, or to both.
type address struct {
	addr    netip.Addr
	owners  []*pod
	sandbox *Sandbox
	owner   *pod // the one pod of owners that counts; nil: none, or the pod of the sandbox is not known
	// contested: pods of several nodes claim the address. It is no pod's as a peer.
	contested bool
	class     *class
	ports     []namedClass
	// policies isolate or judge a pod of this node, by direction, in the order in which they decide. profiles are their
	// grants. A pod that is not known has neither, and is isolated.
	isIsolated, isJudged [2]bool
	policies             [2][]*compiledPolicy
	profiles             [2]*profile
}

// New returns a Compiler for a node.
func New(node string) *Compiler {
	return &Compiler{
		node: node, pods: map[api.Name]*pod{}, namespaces: map[string]*namespaceState{}, addrs: map[netip.Addr]*address{},
		terms: newTermIndex(), classes: map[string]*class{}, classByNumber: map[Class]*class{}, views: map[View]bool{},
		profiles: [2]map[string]*profile{{}, {}}, rules: map[RuleName]*ruleUse{},
		limits: limits{MaxPeers, MaxGrants}, usedPolicies: map[*compiledPolicy]bool{}, problems: map[api.Name]string{}, overPorts: map[api.Name]bool{},
		sandboxes: map[api.Name]map[*address]bool{}, nodes: map[string]*Node{},
		table: newTable(), changes: newChanges(),
		dirtyPods: map[*pod]bool{}, dirtyAddrs: map[*address]bool{}, dirtyNamespaces: map[*namespaceState]bool{}, dirtyViews: map[viewKey]bool{},
		newClasses: map[*class]bool{}, emptyClasses: map[*class]bool{},
	}
}

func (c *Compiler) namespace(name string) *namespaceState {
	s := c.namespaces[name]
	if s == nil {
		s = &namespaceState{name: name, pods: map[*pod]bool{}, policies: map[string]*compiledPolicy{}, retained: map[string]bool{}}
		c.namespaces[name] = s
	}
	return s
}

// forget removes a namespace without an object, pods, policies and views.
func (c *Compiler) forget(s *namespaceState) {
	if s.object == nil && len(s.pods) == 0 && len(s.policies) == 0 && s.views == [2]*blockView{} {
		delete(c.namespaces, s.name)
	}
}

// SetPod sets or, with nil, removes the pod of a name.
func (c *Compiler) SetPod(name api.Name, object *api.Pod) {
	old := c.pods[name]
	if old != nil {
		for _, a := range old.Addrs {
			c.disown(a, old)
		}
		delete(old.namespace.pods, old)
		delete(c.dirtyPods, old)
		delete(c.overPorts, name)
	}
	if object == nil {
		delete(c.pods, name)
		if old != nil {
			c.release(old.namespace)
			c.forget(old.namespace)
		}
	} else {
		p := &pod{Pod: object, namespace: c.namespace(name.Namespace)}
		c.pods[name] = p
		p.namespace.pods[p] = true
		c.dirtyPods[p] = true
		for _, a := range object.Addrs {
			at := c.address(a)
			at.owners = append(at.owners, p)
		}
		c.release(p.namespace)
	}
	for at := range c.sandboxes[name] {
		c.dirtyAddrs[at] = true
	}
}

// address returns the state of an address, and marks it for the next Compile.
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

// SetNamespace sets or, with nil, removes the namespace of a name.
func (c *Compiler) SetNamespace(name string, object *api.Namespace) {
	s := c.namespace(name)
	s.object = object
	for p := range s.pods {
		c.dirtyPods[p] = true
	}
	if len(c.cluster) > 0 {
		c.dirtyNamespaces[s] = true
	}
	c.release(s)
	c.forget(s)
}

// SetPolicy sets or, with nil, removes the NetworkPolicy of a name.
func (c *Compiler) SetPolicy(name api.Name, object *Policy) {
	s := c.namespace(name.Namespace)
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

// release removes the deleted policies of a namespace, unless the namespace is being deleted and still has pods with
// addresses.
func (c *Compiler) release(s *namespaceState) {
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

func (c *Compiler) replacePolicy(s *namespaceState, name string, p *compiledPolicy) {
	if s.policies[name] = p; p == nil {
		delete(s.policies, name)
	}
	s.sorted = nil
	delete(c.problems, api.Name{Namespace: s.name, Name: name})
	c.dirtyNamespaces[s] = true
}

// SetSandbox records the pod of this node to which the CNI plugin has given an address. Nil: the address is free again.
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

// Compile brings the table up to date. It returns the table and the changes since Take.
func (c *Compiler) Compile() (*Table, *Changes) {
	c.passes++
	for at := range c.dirtyAddrs {
		c.chooseOwner(at)
	}
	subjects := c.findSubjects()
	fresh, stale := c.terms.resolve()
	c.updateTerms(fresh, stale)
	if c.terms.networksChanged {
		c.terms.networksChanged = false
		c.updateNetworks()
	}
	for at := range c.dirtyAddrs {
		c.classify(at)
	}
	clear(c.dirtyAddrs)
	c.countViews()
	if len(subjects)+len(c.newClasses)+len(c.emptyClasses) > 0 {
		for at := range c.limitGrants() {
			subjects[at] = true
		}
	}
	c.updateViews()
	for at := range subjects {
		c.updateProfiles(at)
	}
	c.updateClasses()
	return c.table, c.changes
}

// Take starts a new set of changes. Call it when the consumer has applied the last one.
func (c *Compiler) Take() { c.changes = newChanges() }

// chooseOwner finds the pod that counts at an address: the pod of the sandbox, or else the newest pod. A kubelet may
// claim any address for its own pods. If pods of several nodes claim the address, only a pod of this node counts, so
// that the policies still isolate this pod.
func (c *Compiler) chooseOwner(at *address) {
	at.owner, at.contested = nil, false
	if s := at.sandbox; s != nil {
		if p := c.pods[s.Pod]; p != nil && !p.HostNetwork && (s.UID == "" || s.UID == p.UID) {
			at.owner = p
		}
		return
	}
	for _, p := range at.owners {
		at.contested = at.contested || p.Node != at.owners[0].Node
		if at.owner == nil || c.precedes(p, at.owner) {
			at.owner = p
		}
	}
	if at.contested && at.owner.Node != c.node {
		at.owner = nil
	}
}

// precedes reports whether p counts instead of o: a pod of this node before a pod of another node, then the newer pod.
func (c *Compiler) precedes(p, o *pod) bool {
	if own := p.Node == c.node; own != (o.Node == c.node) {
		return own
	}
	return p.Created.After(o.Created) || p.Created.Equal(o.Created) && p.Name.Compare(o.Name) > 0
}

// findSubjects returns the addresses whose policies may have changed, and updates their policies.
func (c *Compiler) findSubjects() map[*address]bool {
	subjects := map[*address]bool{}
	for at := range c.dirtyAddrs {
		subjects[at] = true
	}
	if len(c.dirtyNamespaces) > 0 || c.dirtyCluster {
		for s := range c.dirtyNamespaces {
			c.limitPeers(s)
		}
		for _, at := range c.addrs {
			if c.local(at) && (c.dirtyCluster || at.owner != nil && c.dirtyNamespaces[at.owner.namespace]) {
				subjects[at] = true
			}
		}
		clear(c.dirtyNamespaces)
		c.dirtyCluster = false
	}
	for at := range subjects {
		c.selectPolicies(at)
	}
	return subjects
}

// local reports whether an address belongs to a pod of this node.
func (c *Compiler) local(at *address) bool {
	return at.sandbox != nil || at.owner != nil && at.owner.Node == c.node
}

// selectPolicies finds the policies that isolate or judge an address, and takes references to them.
func (c *Compiler) selectPolicies(at *address) {
	for d := range at.policies {
		var now []*compiledPolicy
		unknown := at.sandbox != nil && at.owner == nil
		isolated, cluster := unknown, unknown && Direction(d) == Egress && c.judgesEgress()
		if c.local(at) && at.owner != nil {
			now = at.owner.namespace.selecting(at.owner.Labels, Direction(d), len(at.policies[d])+1)
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
		c.dirtyCosts(now)
		c.dirtyCosts(at.policies[d])
		at.policies[d] = now
		c.isolate(at, isolated, &at.isIsolated[d], c.table.Isolated[d], c.changes.Isolated[d])
		c.isolate(at, cluster, &at.isJudged[d], c.table.Cluster[d], c.changes.Cluster[d])
	}
}

// selecting returns the policies that isolate a pod with these labels in a direction, sorted by name. It returns at
// most one policy that exceeds a limit, because such policies all have the same effect. capacity is the expected length
// of the result.
func (s *namespaceState) selecting(labels map[string]string, d Direction, capacity int) []*compiledPolicy {
	all := make([]*compiledPolicy, 0, capacity)
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

// inOrder returns the policies of a namespace by name, those over a limit last.
func (s *namespaceState) inOrder() []*compiledPolicy {
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

// isolate records that an address enters or leaves one of the sets Isolated and Cluster.
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
