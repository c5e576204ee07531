package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// Claims decides what counts of the claims of a feed's nodes (api.AcceptNodes). Each reader of nodes' addresses and
// podCIDRs asks it, so that a kubelet's word is checked in one place. Its methods may be called by any goroutine.
type Claims struct {
	store *Store
	all   func() []api.NodeClaims
	stale atomic.Bool // a node or a ServiceCIDR has changed

	mu    sync.Mutex
	facts api.ClusterFacts // of last
	last  *api.AcceptedNodes
	// podCIDRs are the last podCIDRs of each node. A node whose object is gone, or has no podCIDR yet, keeps them until
	// another node has them: its pods still run.
	podCIDRs map[string][]netip.Prefix
	reported map[string]string // by node: the refused claims that the log has
}

// ClaimsOf returns the Claims of a feed of nodes, which the caller must follow. It starts reading the ServiceCIDRs.
func ClaimsOf[V any](s *Store, f *Feed[V], claims func(*V) api.NodeClaims) *Claims {
	c := &Claims{store: s, podCIDRs: map[string][]netip.Prefix{}, reported: map[string]string{}}
	c.all = func() (all []api.NodeClaims) {
		for _, v := range f.All() {
			all = append(all, claims(v))
		}
		return all
	}
	c.stale.Store(true)
	f.mu.Lock()
	f.followers = append(f.followers, func(api.Name, *V, *V, int64) { c.stale.Store(true) })
	f.mu.Unlock()
	s.ranges.Follow(func(api.Name, *ServiceRange, *ServiceRange, int64) { c.stale.Store(true) })
	return c
}

// NodeClaims returns the claims of a Node.
func (n *Node) NodeClaims() api.NodeClaims {
	return api.NodeClaims{Name: n.Name, Created: n.Created, Addrs: n.Addrs, PodCIDRs: n.PodCIDRs}
}

// NodeClaims returns the Claims of the nodes that the store watches. The caller must follow the NodeFeed.
func (s *Store) NodeClaims() *Claims {
	s.claimsOnce.Do(func() { s.claims = ClaimsOf(s, s.nodes, (*Node).NodeClaims) })
	return s.claims
}

// Now returns the claims that count now.
func (c *Claims) Now() *api.AcceptedNodes {
	c.mu.Lock()
	defer c.mu.Unlock()
	stale := c.stale.Swap(false)
	if servers := c.store.apiServersOutside(); c.last == nil || stale || !slices.Equal(c.facts.Fixed, servers) {
		c.facts.Fixed = servers
		c.decide()
	}
	return c.last
}

// apiServersOutside returns the addresses of the API server. An address inside the cluster CIDR does not count.
// Otherwise the writers of the API server's EndpointSlice could take podCIDRs from nodes.
func (s *Store) apiServersOutside() (all []api.FixedAddr) {
	for _, a := range s.APIServers() {
		if !slices.ContainsFunc(s.cfg.ClusterCIDRs, func(pods netip.Prefix) bool { return pods.Contains(a) }) {
			all = append(all, api.FixedAddr{Addr: a, What: "the API server's address"})
		}
	}
	slices.SortFunc(all, func(a, b api.FixedAddr) int { return a.Addr.Compare(b.Addr) })
	return all
}

// departed is the age of nodes whose objects are gone: all other nodes are older.
var departed = time.Unix(1<<40, 0)

// decide decides again. c.mu is held.
func (c *Claims) decide() {
	f := c.facts
	f.ClusterCIDRs, f.ServiceCIDRs = c.store.cfg.ClusterCIDRs, c.store.ServiceCIDRs()
	nodes := c.all()
	gone := maps.Clone(c.podCIDRs)
	for i := range nodes {
		n := &nodes[i]
		if len(n.PodCIDRs) == 0 {
			n.PodCIDRs = c.podCIDRs[n.Name]
		} else {
			c.podCIDRs[n.Name] = n.PodCIDRs
		}
		if delete(gone, n.Name); n.Name == c.store.cfg.NodeName {
			f.Self = *n
		}
	}
	for name, podCIDRs := range gone {
		nodes = append(nodes, api.NodeClaims{Name: name, Created: departed, PodCIDRs: podCIDRs})
	}
	c.last = api.AcceptNodes(nodes, f)
	for name := range gone {
		if len(c.last.PodCIDRs(name)) == 0 {
			delete(c.podCIDRs, name)
		}
	}
	c.log(gone)
}

// log logs the refused claims of each present node, when they have changed.
func (c *Claims) log(gone map[string][]netip.Prefix) {
	first, count := map[string]string{}, map[string]int{}
	for _, p := range c.last.Problems {
		if _, departed := gone[p.Node]; departed {
			continue
		}
		if count[p.Node]++; count[p.Node] == 1 {
			first[p.Node] = p.Message
		}
	}
	now := map[string]string{}
	for node, message := range first {
		if n := count[node]; n > 1 {
			message += fmt.Sprintf(" (and %d further claims)", n-1)
		}
		if now[node] = message; c.reported[node] != message {
			c.store.cfg.Log.Warn("a node claims what it must not have", "node", node, "reason", api.ReasonNodeClaim, "problem", message)
		}
	}
	c.reported = now
}

// acceptPod returns a pod without the addresses that it must not have. With Config.PodNetwork a pod of another node has
// only addresses of the node's podCIDRs: a kubelet may write any address into the status of its pods.
func (s *Store) acceptPod(p *api.Pod, nodes *api.AcceptedNodes) *api.Pod {
	if p == nil || !s.cfg.PodNetwork || p.Node == s.cfg.NodeName {
		return p
	}
	refused := func(a netip.Addr) bool { return !nodes.HasPod(p.Node, a) }
	if !slices.ContainsFunc(p.Addrs, refused) {
		return p
	}
	accepted := *p
	accepted.Addrs = slices.DeleteFunc(slices.Clone(p.Addrs), refused)
	return &accepted
}

// AcceptedPod returns a pod with the addresses that it may have. It may return nil or p itself.
func (s *Store) AcceptedPod(p *api.Pod) *api.Pod {
	if !s.cfg.PodNetwork {
		return p
	}
	return s.acceptPod(p, s.NodeClaims().Now())
}

// AcceptedPods returns all pods with the addresses that they may have.
func (s *Store) AcceptedPods() []*api.Pod {
	all := s.pods.All()
	if !s.cfg.PodNetwork {
		return all
	}
	nodes := s.NodeClaims().Now()
	for i, p := range all {
		all[i] = s.acceptPod(p, nodes)
	}
	return all
}
