package service

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Service is what this package needs to know of a Kubernetes Service. The API
// edge (internal/kube) fills it; what it could not read it says in Problems.
type Service struct {
	api.Name
	// ClusterIPs are the Service's own addresses, one a family; empty for headless
	// and ExternalName Services, which have no Frontends.
	ClusterIPs []netip.Addr
	// ExternalIPs and BalancerIPs are addresses for clients outside the cluster: those of
	// spec.externalIPs, and those that a load balancer has (status.loadBalancer.ingress)
	// and sends packets to unchanged (ipMode VIP).
	ExternalIPs, BalancerIPs []netip.Addr
	// Sources are loadBalancerSourceRanges: the clients that may use BalancerIPs. Empty: all.
	Sources []netip.Prefix
	Ports   []Port
	// CheckedPorts are the ports at which BalancerIPs may be nodes' own addresses: those that the
	// load balancer's controller has checked and named in the status, which no user may write.
	// At other ports such addresses are refused.
	CheckedPorts []CheckedPort
	// Affinity is sessionAffinity ClientIP's timeout; 0: none.
	Affinity time.Duration
	// Balance is the algorithm that the Service asks for, if Balanced; else the
	// node's default counts.
	Balance  Algorithm
	Balanced bool
	// Weighted says that the endpoints' weights count.
	Weighted bool
	// Termination says which TCP connections end because of what became of their endpoint.
	Termination TerminationPolicy
	// HealthCheckNodePort is where load balancers ask whether this node has endpoints;
	// it counts with ExternalLocal only. 0: nowhere.
	HealthCheckNodePort uint16
	// InternalLocal and ExternalLocal are internalTrafficPolicy: Local and
	// externalTrafficPolicy: Local.
	InternalLocal, ExternalLocal bool
	// Created orders Services that claim the same address: the older one has it.
	// Seconds since 1970; zero is the oldest.
	Created int64
	// Egress says which pods leave the cluster with BalancerIPs; nil: none.
	Egress *Egress
	// Problems are the parts of the object that made no sense and were left out.
	Problems []api.Problem
}

// An Egress is which pods of a Service's namespace leave the cluster with its addresses.
type Egress struct {
	// All pods of the namespace; else those that have all labels of Selector, which has some.
	All      bool
	Selector map[string]string
}

// A Port is one port of a Service.
type Port struct {
	Name     string
	Proto    api.Proto
	Port     uint16
	NodePort uint16 // 0: none
}

// A CheckedPort is a port of nodes' own addresses that a load balancer may have.
type CheckedPort struct {
	Proto api.Proto
	Port  uint16
}

// A Slice is what this package needs to know of an EndpointSlice.
type Slice struct {
	api.Name
	Service   api.Name // the Service it belongs to
	Ports     []SlicePort
	Endpoints []SliceEndpoint
	Pods      PodNames // behind the Endpoints, in their order
	Problems  []api.Problem
}

// A SlicePort is one port of a Slice: the number that a Service's port of this name
// and protocol has on the pods of the Slice.
type SlicePort struct {
	Name  string
	Proto api.Proto
	Port  uint16
}

// A SliceEndpoint is one pod of a Slice.
type SliceEndpoint struct {
	Addr                        netip.Addr
	Node                        string // empty: not known, so never local
	Ready, Serving, Terminating bool
	// Weight is the pod's share of new connections, if the Service is Weighted; it is
	// known only if HasWeight, else it is 1. A pod of weight 0 gets no new connections
	// and goes on with those it has; if all that a node may use have 0, all are equal.
	Weight    uint16
	HasWeight bool
	// NodeHints and ZoneHints name the nodes and zones that are to use the endpoint.
	NodeHints, ZoneHints []string
}

// A Node is what a Table is compiled for: all that the rules depend on besides the
// objects themselves.
type Node struct {
	Name string // the node's name, as in SliceEndpoint.Node
	Zone string // its label topology.kubernetes.io/zone; empty: none
	// Settings are the facts that the Table carries to the datapath. Whether the node can
	// tell pods from other clients (Settings.Detect) also decides whether traffic to
	// ClusterIPs from outside the cluster is masqueraded.
	Settings Settings
	// Primary4 and Primary6 are the node's own addresses. One that lies in a Service's
	// Sources may come through the load balancer's address, which then counts as a
	// source as well: that is what the packet carries when the node calls it.
	Primary4, Primary6 netip.Addr
	// Balance is the algorithm of Services that name none, and Unsupported are the
	// algorithms that the node's datapath cannot do.
	Balance     Algorithm
	Unsupported Algorithms
	// NodeAddrs are addresses of nodes, this one's first of all, and APIServers those where
	// the API server is reached, as far as they are known. No Service may have them for
	// clients outside the cluster, nor an address in Settings.ServiceCIDRs.
	NodeAddrs, APIServers AddrSet
	// Dead are the nodes that their peers declare dead, sorted: see selection.
	Dead              []string
	RefuseExternalIPs bool // leave out ExternalIPs (KEP-5707: they can be abused)
	EgressOff         bool // no pod leaves the cluster with a Service's address, whatever the Service asks for
	Limits            Limits
	MasqueradeAll     bool // masquerade every client of a ClusterIP; of a balancer outside: every client
	// Outside says that the machine is none of the cluster's nodes but a balancer before them: it
	// has load balancers' addresses only, those in Balances. Its Settings.ServiceCIDRs are as much of
	// these as no interface of its own has.
	Outside  bool
	Balances []netip.Prefix
}

// CompilesLike reports whether Compile returns the same for n and o, whatever the Service:
// if not, every Service must be compiled again. Of Settings only Detect and ServiceCIDRs count.
// NodeAddrs and APIServers do not: see RefusesLike; nor does Dead: see DeadUnlike.
func (n Node) CompilesLike(o Node) bool {
	n4, n6 := n.Settings.Detect()
	o4, o6 := o.Settings.Detect()
	return n.Name == o.Name && n.Zone == o.Zone && n4 == o4 && n6 == o6 && samePrefixes(n.Settings.ServiceCIDRs, o.Settings.ServiceCIDRs) &&
		n.Primary4 == o.Primary4 && n.Primary6 == o.Primary6 && n.Balance == o.Balance && n.Unsupported == o.Unsupported &&
		n.RefuseExternalIPs == o.RefuseExternalIPs && n.EgressOff == o.EgressOff && n.Limits == o.Limits && n.MasqueradeAll == o.MasqueradeAll &&
		n.Outside == o.Outside && samePrefixes(n.Balances, o.Balances)
}

// RefusesLike reports whether n and o have the same NodeAddrs and APIServers. If not, the
// Services whose Entry DependsOnAddresses must be compiled again.
func (n Node) RefusesLike(o Node) bool {
	return slices.Equal(n.NodeAddrs, o.NodeAddrs) && slices.Equal(n.APIServers, o.APIServers)
}

// DeadUnlike returns the nodes that are Dead to n or to o alone. The Services whose Entry has
// endpoints there must be compiled again.
func (n Node) DeadUnlike(o Node) (names []string) {
	for _, one := range [2][2][]string{{n.Dead, o.Dead}, {o.Dead, n.Dead}} {
		for _, name := range one[0] {
			if !slices.Contains(one[1], name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Changes counts the changes of objects that were seen, and those that nothing has been
// made of yet.
type Changes struct{ Services, Endpoints, ServicesPending, EndpointsPending uint64 }
