package path

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/service"
)

// A Cluster has the objects and settings that decide about packets.
type Cluster struct {
	Domain     string // of the cluster's names; empty: cluster.local
	Mode       string // of the agents: "nftables", …; empty: not known
	PodNetwork string // of the agents: "routes", "vxlan", …; empty or "none": another program's
	// NotEnforced says why the agents do not enforce NetworkPolicies; empty: they do.
	NotEnforced string
	Services    map[api.Name]*Service
	Slices      map[api.Name][]*service.Slice // by the name of the Service
	Pods        map[api.Name]*Pod
	Nodes       map[string]*Node
	Policies    *networkpolicy.Cluster
	// Announced has what the speakers of load balancers report, by address. Nothing is known of other addresses.
	Announced map[netip.Addr]Announcement
}

// An Announcement says who makes the network lead an address to it.
type Announcement struct {
	Nodes  []string // sorted
	How    string   // "l2 by eth0"
	Reason string   // why nobody does, without Nodes
}

// A Service is a Service as people write it, next to the part that the nodes serve.
type Service struct {
	*service.Service
	Type         string // "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"
	Headless     bool
	ExternalName string
	Selector     map[string]string // empty: the endpoints are not made from pods
	Ports        []ServicePort     // also of a headless Service
	// ProxyIPs are addresses of load balancers of ipMode Proxy, which nodes do not serve.
	ProxyIPs []netip.Addr
	// ClusterDNS says that the Service is the cluster's DNS.
	ClusterDNS bool
}

// A ServicePort is a port with its target.
type ServicePort struct {
	service.Port
	TargetName string // a name of a pod's port; empty: Target counts
	Target     uint16
}

// A Pod is a pod with the facts that explain why it is not ready.
type Pod struct {
	*api.Pod
	Phase      string
	Ready      bool
	Deleting   bool
	Finished   bool
	Containers []Container
	Resolver   Resolver
	NodeAddrs  []netip.Addr // for a pod on its node's network
}

// A Container is the state of a container of a pod.
type Container struct {
	Name     string
	Ports    []api.NamedPort // also without a name
	Ready    bool
	HasProbe bool   // a readiness probe
	Probe    string // the readiness probe, in words: "HTTP GET :8080/healthz"
	Waiting  string // the reason why it does not run: "CrashLoopBackOff"
	ExitCode int32  // of the last run, with Exited
	Exited   bool
}

// A Resolver is the resolver of a pod.
type Resolver struct {
	Cluster bool // the pod asks the cluster's DNS
	Search  []string
	Ndots   int
}

// A Node is a node and the facts for its table of Services.
type Node struct {
	Name     string
	Addrs    []netip.Addr
	PodCIDRs []netip.Prefix
	Facts    service.Facts
	// Unavailable is the message of the condition NetworkUnavailable; empty: it is not true.
	Unavailable string
}

// domain returns the cluster's domain.
func (c *Cluster) domain() string { return cmp.Or(c.Domain, "cluster.local") }

// addrs returns the addresses that packets of the pod have.
func (p *Pod) addrs() []netip.Addr {
	if p.HostNetwork {
		return p.NodeAddrs
	}
	return p.Addrs
}

// podAt returns the pod with an address, or nil. Pods on their node's network have none of their own.
func (c *Cluster) podAt(a netip.Addr) *Pod {
	var found *Pod
	for _, p := range c.Pods {
		if slices.Contains(p.Addrs, a) && (found == nil || p.Name.Compare(found.Name) < 0) {
			found = p
		}
	}
	return found
}

// nodeAt returns the node with an address, or nil.
func (c *Cluster) nodeAt(a netip.Addr) *Node {
	for _, n := range c.nodes() {
		if slices.Contains(n.Addrs, a) || slices.Contains(n.Facts.OwnAddrs, a) {
			return n
		}
	}
	return nil
}

// nodeOfPods returns the node that has the range of a pod's address, or nil.
func (c *Cluster) nodeOfPods(a netip.Addr) (*Node, netip.Prefix) {
	for _, n := range c.nodes() {
		for _, cidr := range n.PodCIDRs {
			if cidr.Contains(a) {
				return n, cidr
			}
		}
	}
	return nil, netip.Prefix{}
}

// nodes returns the nodes, sorted by name.
func (c *Cluster) nodes() []*Node { return sorted(c.Nodes, cmp.Compare[string]) }

// services returns the Services, sorted by name.
func (c *Cluster) services() []*Service { return sorted(c.Services, api.Name.Compare) }

// pods returns the pods, sorted by name.
func (c *Cluster) pods() []*Pod { return sorted(c.Pods, api.Name.Compare) }

func sorted[K comparable, V any](m map[K]V, compare func(a, b K) int) []V {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	all := make([]V, len(keys))
	for i, k := range keys {
		all[i] = m[k]
	}
	return all
}

// table compiles the table of a node.
func (c *Cluster) table(n *Node) *service.Table {
	b := service.NewBuilder().Limit(n.Facts.Limits)
	for _, s := range c.services() {
		b.Set(service.Compile(s.Service, c.Slices[s.Name], n.Facts))
	}
	return b.Table(n.Facts.Settings)
}

// of returns the first address of a family.
func of(all []netip.Addr, is4 bool) netip.Addr {
	for _, a := range all {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}
