package service

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Packet is the first packet of a flow: its header and the facts that the node knows about it.
type Packet struct {
	From  netip.Addr // the client
	To    netip.AddrPort
	Proto api.Proto
	// FromPod says that the packet came in through one of Settings.PodInterfaces, so the client counts as a pod.
	// Clients in Settings.Pods always count as pods.
	FromPod  bool
	FromNode bool // the node itself is the client
	ToNode   bool // To is one of the node's own addresses, which may serve NodePorts
}

// A Decision is the action for a Packet, with the reason.
type Decision struct {
	// Packet is the packet of the question. Its FromPod also counts Settings.Pods.
	Packet   Packet
	Frontend *Frontend // the frontend that answers at the address; nil: none
	Route    *Route    // the Route for the packet's class of traffic; nil without a Frontend, or if the client is not allowed
	Action   Action    // Pass: the packet is not for a Service
	Reason   Reason
}

// A Reason says why a Decision has its Action. The zero value goes with Pass.
type Reason uint8

// The reasons, each with its Action.
const (
	NotAService         Reason = iota // Pass: no Service has the address
	HasEndpoints                      // Forward
	NoEndpoints                       // Reject: no endpoint of the Service on any node could answer
	NoUsableEndpoints                 // Drop: other nodes may use some endpoints, this node may not
	SourceNotAllowed                  // Drop: the client is not in loadBalancerSourceRanges
	NoSuchPort                        // Reject: the address is for Services only, and no Service has the port
	UnassignedClusterIP               // Drop: the address is in a ServiceCIDR, and no Service has it
	reasonCount
)

var reasonTexts = [reasonCount]string{
	"the address is not a Service's",
	"the Service has endpoints",
	"the Service has no endpoints that serve",
	"the Service has endpoints, but none that this node may use",
	"loadBalancerSourceRanges does not allow the client",
	"the address is a Service's, and no Service has this port of it",
	"the address is in a ServiceCIDR, and no Service has it",
}

// String returns the reason in words.
func (r Reason) String() string { return reasonTexts[r] }

// Masquerades reports whether an endpoint of the Decision's Route sees an address of this node instead of the client's.
// The node's own packets carry a node address anyway.
func (d Decision) Masquerades(e Endpoint) bool {
	hairpin := e.Local && e.Addr.Addr() == d.Packet.From
	return hairpin || d.Route.Masquerade == MasqueradeAll || d.Route.Masquerade == MasqueradeOffCluster && !d.Packet.FromPod
}

// Internal reports whether the packet is internal traffic: from a pod or from the node.
func (p Packet) Internal() bool { return p.FromPod || p.FromNode }

// Decide returns the Decision of the frontend about a packet to it. FromPod must say whether the client counts as a pod
// for any reason.
func (f *Frontend) Decide(p Packet) Decision {
	d := Decision{Packet: p, Frontend: f}
	if len(f.Sources) > 0 && !anyContains(f.Sources, p.From) {
		d.Action, d.Reason = Drop, SourceNotAllowed
		return d
	}
	d.Route = f.External
	if p.Internal() {
		d.Route = f.Internal
	}
	d.Action = d.Route.Action
	d.Reason = [...]Reason{Forward: HasEndpoints, Reject: NoEndpoints, Drop: NoUsableEndpoints}[d.Action]
	return d
}

// Lookup returns the decision of a node with the table about a packet. It indexes the whole table: for many packets make
// one Index.
func Lookup(t *Table, p Packet) Decision { return NewIndex(t).Lookup(p) }

// An Index answers Lookup with a few map accesses. It is immutable and may be read by any goroutine.
type Index struct {
	settings   Settings
	frontends  map[Key]*Frontend
	clusterIPs map[netip.Addr]struct{}
	externals  map[netip.Addr]struct{} // see Frontend.OwnsAddress
}

// NewIndex returns an Index of a table. It needs about as much memory as the keys of the table's frontends, so make one
// only to look up flows or connections.
func NewIndex(t *Table) *Index {
	_, n := t.Len()
	x := &Index{settings: t.Settings, frontends: make(map[Key]*Frontend, n), clusterIPs: map[netip.Addr]struct{}{}, externals: map[netip.Addr]struct{}{}}
	for f := range t.Frontends() {
		x.frontends[f.Key()] = f
		if f.ClusterIP {
			x.clusterIPs[f.Addr.Addr()] = struct{}{}
		}
		if f.OwnsAddress() {
			x.externals[f.Addr.Addr()] = struct{}{}
		}
	}
	return x
}

// Lookup returns the decision of a node with the Index's table about a packet.
func (x *Index) Lookup(p Packet) Decision {
	p.FromPod = p.FromPod || anyContains(x.settings.Pods, p.From)
	if f := x.Frontend(Key{p.To, p.Proto}, p.ToNode); f != nil {
		return f.Decide(p)
	}
	a := p.To.Addr()
	if _, ok := x.clusterIPs[a]; ok {
		return Decision{Packet: p, Action: Reject, Reason: NoSuchPort}
	}
	if anyContains(x.settings.ServiceCIDRs, a) {
		return Decision{Packet: p, Action: Drop, Reason: UnassignedClusterIP}
	}
	if _, ok := x.externals[a]; ok && !p.FromNode && !p.ToNode {
		return Decision{Packet: p, Action: Reject, Reason: NoSuchPort}
	}
	return Decision{Packet: p, Action: Pass, Reason: NotAService}
}

// Frontend is Answering for the Index's table.
func (x *Index) Frontend(at Key, toNode bool) *Frontend {
	return Answering(x.frontends, &x.settings, at, toNode)
}

// Answering returns the frontend that answers packets to an address, port and protocol: the frontend of the address,
// else the NodePort, if the address is the node's own (toNode) and serves NodePorts. F is a caller's form of a frontend;
// its zero value means that nothing answers.
func Answering[F comparable](frontends map[Key]F, s *Settings, at Key, toNode bool) F {
	var none F
	if f := frontends[at]; f != none || !toNode || !s.ServesNodePorts(at.Addr.Addr()) {
		return f
	}
	return frontends[at.NodePort()]
}

// NodePort returns the key of the NodePort with the same number and protocol.
func (k Key) NodePort() Key {
	any := netip.IPv6Unspecified()
	if k.Addr.Addr().Is4() {
		any = netip.IPv4Unspecified()
	}
	return Key{netip.AddrPortFrom(any, k.Addr.Port()), k.Proto}
}

func anyContains(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}
