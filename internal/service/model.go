package service

import (
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// Action is what becomes of a packet. The zero value is Forward.
type Action uint8

// The actions. Reject answers the client (ICMP port unreachable), so that it fails
// at once; Drop stays silent, so that it retries: kube-proxy rejects where a Service
// has no endpoint anywhere and drops where it has none that this node may use.
const (
	Forward Action = iota
	Reject
	Drop
	Pass // the packet is not for a Service: only a Decision says it, never a Route
)

// String returns "forward", "reject", "drop" or "pass".
func (a Action) String() string { return [...]string{"forward", "reject", "drop", "pass"}[a] }

// Masquerade says of which packets the source address is replaced by the node's own, so
// that the reply comes back through this node. A packet that an endpoint sends to itself
// through a Service (hairpin) is always masqueraded: its reply would not leave the pod.
type Masquerade uint8

// The zero value replaces only the source of hairpin packets.
const (
	MasqueradeHairpin    Masquerade = iota // only hairpin packets
	MasqueradeOffCluster                   // also packets of clients that are not pods by Settings.Pods
	MasqueradeAll                          // all packets
)

// String returns "hairpin", "off-cluster" or "all".
func (m Masquerade) String() string { return [...]string{"hairpin", "off-cluster", "all"}[m] }

// An Endpoint is one pod's address and port, chosen for this node.
type Endpoint struct {
	Addr  netip.AddrPort
	Local bool // it runs on this node, so that it can be its own client (hairpin)
	// Weight is its share of new connections relative to the others'. 0 is the same as 1,
	// and what all endpoints have if their Service does not ask for weights.
	Weight uint16
}

// A Route is what becomes of a packet that reaches a Frontend.
type Route struct {
	Endpoints  []Endpoint // sorted by address, without duplicates; empty unless Action is Forward
	Action     Action
	Masquerade Masquerade
	// Local says that the route may use the endpoints of this node only (policy Local);
	// false unless Action is Forward. With affinity, routes of policy Local and others of
	// the same Service port keep their clients apart: a client that one address sent to an
	// endpoint on another node must not be sent there by an address of policy Local.
	Local bool
}

// A Frontend is one address that this node answers for, with every policy already
// decided.
type Frontend struct {
	// Addr is the address and port clients use. A NodePort has the unspecified
	// address of its family: "any address in Settings.NodePorts".
	Addr  netip.AddrPort
	Proto api.Proto
	// ClusterIP says that the address is the Service's alone: a packet to a port of it
	// that no Frontend has is rejected, not passed on.
	ClusterIP bool
	// LoadBalancer says that the address is one of the Service's load balancer, and not one of
	// spec.externalIPs. Packets fare the same at both; people and kube-proxy's rules tell them apart.
	LoadBalancer bool
	// Balance says how new connections are spread over a Route's endpoints.
	Balance     Algorithm
	Termination TerminationPolicy // see Retained
	Service     api.PortName      // for names, metrics and messages
	Internal    *Route            // for pods (Settings.Pods) and for the node itself
	External    *Route            // for all other clients; the same pointer as Internal when nothing differs
	// Affinity is how long a client stays at the endpoint it got, counted from its last
	// new connection, over all Frontends of the same Service port; 0: not at all.
	Affinity time.Duration
	// Sources are the clients that may use the address, packets of others are dropped;
	// sorted. Empty: all clients.
	Sources []netip.Prefix
	// Retained are the endpoints that keep the flows they have although no Route has them:
	// they get no new ones. Sorted. On the way between two tables (Step) it has those of the routes too. For TCP, Termination says which these are; for UDP they
	// are those that serve. No datapath reads either, and Equal leaves both out: package
	// flow uses them.
	Retained []netip.AddrPort
}

// NodePort reports whether the frontend is a port on the node's own addresses.
func (f *Frontend) NodePort() bool { return f.Addr.Addr().IsUnspecified() }

// A Kind says where a Service has an address from.
type Kind string

// The kinds.
const (
	KindClusterIP    Kind = "ClusterIP"
	KindNodePort     Kind = "NodePort"
	KindExternalIP   Kind = "ExternalIP"
	KindLoadBalancer Kind = "LoadBalancer"
)

// Kinds returns all of them, in the order in which people read a Service's addresses.
func Kinds() []Kind { return []Kind{KindClusterIP, KindNodePort, KindExternalIP, KindLoadBalancer} }

// Kind returns the frontend's.
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

// Key returns what identifies the frontend on a node.
func (f *Frontend) Key() Key { return Key{f.Addr, f.Proto} }

// A Key identifies a Frontend: no two in a Table have the same.
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
	// Pods are the sources that count as pods: kube-proxy's local-traffic detector.
	// Empty means that no client does.
	Pods []netip.Prefix
	// PodInterfaces are the node's interfaces behind which only pods are; a name that ends
	// in "*" stands for all that begin so. A client whose packet comes in there counts as a
	// pod as well.
	PodInterfaces []string
	// NodePorts are the addresses of this node on which NodePorts are served by datapaths;
	// never on loopback addresses, even if a prefix
	// contains some (package hostport serves them there). Empty means none.
	NodePorts []netip.Prefix
	// NodeIPs are addresses that are known to be this node's own, so that the kernel need
	// not be asked whether a packet to them is for this node. They say nothing about what
	// is served there, so that Equal leaves them out.
	NodeIPs []netip.Addr
	// ServiceCIDRs are what ClusterIPs are taken from. A packet to an address in them that
	// no Frontend has is dropped: a Service may get the address later. Empty: not known.
	ServiceCIDRs []netip.Prefix
}

// Detect reports for each family whether there are sources that count as pods.
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
