package service

import (
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// An Action is the treatment of a packet by a node. The zero value is Forward.
type Action uint8

// The actions, as in kube-proxy. Reject answers the client with a TCP reset or ICMP port unreachable, so that the client
// fails at once: no node has an endpoint. Drop is silent, so that the client tries again: other nodes have endpoints.
const (
	Forward Action = iota
	Reject
	Drop
	Pass // the packet is not for a Service. A Decision may have this Action, a Route never
)

// String returns "forward", "reject", "drop" or "pass".
func (a Action) String() string { return [...]string{"forward", "reject", "drop", "pass"}[a] }

// Masquerade selects the packets that get the node's address as their source, so that replies return through this node.
// A packet that an endpoint sends to itself through a Service (hairpin) is always masqueraded, because its reply would
// not leave the pod.
type Masquerade uint8

// The kinds of masquerading. The zero value is MasqueradeHairpin.
const (
	MasqueradeHairpin    Masquerade = iota // only hairpin packets
	MasqueradeOffCluster                   // also packets of clients that are not in Settings.Pods
	MasqueradeAll                          // all packets
)

// String returns "hairpin", "off-cluster" or "all".
func (m Masquerade) String() string { return [...]string{"hairpin", "off-cluster", "all"}[m] }

// An Endpoint is a pod's address and port that this node may use.
type Endpoint struct {
	Addr  netip.AddrPort
	Local bool // the pod is on this node, so it can be its own client (hairpin)
	// Weight is the endpoint's share of new connections, relative to the other endpoints. 0 means 1. All weights are 0
	// if the Service does not ask for weights.
	Weight uint16
}

// A Route is the treatment of the packets of a class of traffic.
type Route struct {
	Endpoints  []Endpoint // sorted by address, without duplicates; empty unless Action is Forward
	Action     Action
	Masquerade Masquerade
	// Local says that the route has only endpoints of this node (policy Local); false unless Action is Forward.
	// The routes of policy Local remember clients with affinity separately from other routes of the Service port. Otherwise
	// another address could have sent the client to an endpoint on another node, which policy Local must not use.
	Local bool
	// Spare is how many of the endpoints may be passed by because they fail connections, so that at least half of all
	// get connections. Equal ignores it, because only datapaths that see connections fail read it.
	Spare int
}

// A Frontend is one address that this node answers for. All policies are already applied.
type Frontend struct {
	// Addr is the address and port that clients use. A NodePort has the unspecified address of its family, which stands
	// for all addresses in Settings.NodePorts.
	Addr  netip.AddrPort
	Proto api.Proto
	// ClusterIP says that the address belongs to the Service alone. Packets to its other ports are rejected, not passed.
	ClusterIP bool
	// OnNode says that the address is a node's own. Its other ports are the node's, so their packets pass. Packets to other
	// ports of an address that is no node's would leave this node by the way that they came: see OwnsAddress.
	OnNode bool
	// LoadBalancer says that the address is the load balancer's, not one of spec.externalIPs. Packets are treated alike;
	// people and kube-proxy's rules distinguish the two.
	LoadBalancer bool
	// Balance spreads new connections over a Route's endpoints.
	Balance     Algorithm
	Termination TerminationPolicy // see Retained
	Service     api.PortName      // for names, metrics and messages
	Internal    *Route            // for pods (Settings.Pods) and the node itself
	External    *Route            // for all other clients; the same pointer as Internal if nothing differs
	// Affinity is how long a client keeps its endpoint after its last new connection. All Frontends of a Service port
	// share it. 0: no affinity.
	Affinity time.Duration
	// Ejection is how long an endpoint that fails connections gets no new ones at first; 0: none is ejected. Equal ignores
	// it like Route.Spare.
	Ejection time.Duration
	// Sources are the clients that may use the address, sorted. Packets of other clients are dropped. Empty: all clients.
	Sources []netip.Prefix
	// Retained are endpoints outside of the routes that keep their existing flows but get no new flows, sorted. For TCP
	// they follow from Termination; for UDP they are the endpoints that still serve. Only package flow reads Retained and
	// Termination; datapaths and Equal ignore both.
	Retained []netip.AddrPort
}

// NodePort reports whether the frontend is a port on the node's own addresses.
func (f *Frontend) NodePort() bool { return f.Addr.Addr().IsUnspecified() }

// OwnsAddress reports whether the network leads all packets for the frontend's address to nodes, because it is a load
// balancer's or an external IP. If a packet from another host is for a port that no Service has, the node refuses it.
// Without that, the packet would go back to the router, which returns it to the node, until its TTL is used up. Packets of
// the node itself pass: another machine may have the address, for example a VIP that moves between nodes.
func (f *Frontend) OwnsAddress() bool { return !f.ClusterIP && !f.NodePort() && !f.OnNode }

// A Kind is the kind of an address of a Service.
type Kind string

// The kinds.
const (
	KindClusterIP    Kind = "ClusterIP"
	KindNodePort     Kind = "NodePort"
	KindExternalIP   Kind = "ExternalIP"
	KindLoadBalancer Kind = "LoadBalancer"
)

// Kinds returns all kinds, in the order in which people read a Service's addresses.
func Kinds() []Kind { return []Kind{KindClusterIP, KindNodePort, KindExternalIP, KindLoadBalancer} }

// Kind returns the kind of the frontend's address.
func (f *Frontend) Kind() Kind {
	switch {
	case f.ClusterIP:
		return KindClusterIP
	case f.NodePort():
		return KindNodePort
	case f.LoadBalancer:
		return KindLoadBalancer
	}
	return KindExternalIP
}

// Key returns the key of the frontend.
func (f *Frontend) Key() Key { return Key{f.Addr, f.Proto} }

// A Key identifies a Frontend in a Table.
type Key struct {
	Addr  netip.AddrPort
	Proto api.Proto
}

// Compare orders keys by address, port and protocol.
func (k Key) Compare(o Key) int {
	if c := k.Addr.Compare(o.Addr); c != 0 {
		return c
	}
	return int(k.Proto) - int(o.Proto)
}

// String returns "10.96.0.10:53/UDP".
func (k Key) String() string { return k.Addr.String() + "/" + k.Proto.String() }

// Settings are the facts about a node that hold for all its Frontends.
type Settings struct {
	// Pods are the source ranges that count as pods: kube-proxy's local-traffic detector. Empty: no client counts as a pod.
	Pods []netip.Prefix
	// PodInterfaces are interfaces of the node that lead only to pods. A name that ends in "*" stands for all names with
	// that beginning. Clients behind such an interface count as pods.
	PodInterfaces []string
	// NodePorts are the ranges of this node's addresses on which datapaths serve NodePorts; empty: none. Loopback
	// addresses never count, even inside a range: package hostport serves them.
	NodePorts []netip.Prefix
	// NodeIPs are known addresses of this node, so that datapaths need not ask the kernel. Equal ignores them.
	NodeIPs []netip.Addr
	// ServiceCIDRs are the ranges of ClusterIPs; empty: not known. Packets to an address in a range that no Frontend has
	// are dropped, because a Service may get the address later.
	ServiceCIDRs []netip.Prefix
}

// Detect reports for each family whether some clients count as pods.
func (s Settings) Detect() (is4, is6 bool) {
	for _, p := range s.Pods {
		is4 = is4 || p.Addr().Is4()
		is6 = is6 || p.Addr().Is6()
	}
	if len(s.PodInterfaces) > 0 {
		return true, true
	}
	return is4, is6
}
