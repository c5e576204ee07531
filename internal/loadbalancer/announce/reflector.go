package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// ReflectorLabel makes the speaker of a Node a route reflector. It announces the podCIDRs of the other nodes in its
// networks to routers, and the routers' routes to these nodes, so routers need no session with other nodes. The value is
// the ASN of the sessions between nodes.
//
// A kubelet cannot set the label on its own Node (admission NodeRestriction), so it cannot divert other nodes' packets.
const ReflectorLabel = "fairway.net.node-restriction.kubernetes.io/route-reflector"

// The timers by which a node and a route reflector notice that the other end is gone.
const (
	reflectorHold, reflectorKeepalive, reflectorConnect = 9 * time.Second, 3 * time.Second, time.Second
	reflectorBFD                                        = 300 * time.Millisecond
	reflectorBFDMultiplier                              = 3
)

// A Reflector is the configuration of a node that is a route reflector.
type Reflector struct {
	ASN      uint32
	RouterID netip.Addr
	Listen   []netip.Addr // the node's addresses
	Port     uint16
	Clients  []Client // sorted by name
}

// A Client is a node whose podCIDRs a Reflector announces.
type Client struct {
	SessionConfig                // from the reflector's side
	PodCIDRs      []netip.Prefix // the prefixes that the client may announce
}

// reflectorASN returns the ASN of a node's label; 0 if the node is no reflector. reason is set if the label is invalid.
func (n *Node) reflectorASN() (asn uint32, reason string) {
	text, ok := n.Labels[ReflectorLabel]
	if !ok {
		return 0, ""
	}
	number, err := strconv.ParseUint(text, 10, 32)
	if err != nil || number == 0 {
		return 0, fmt.Sprintf("label %s: %q is no ASN [a number from 1 to 4294967295, such as 64512]", ReflectorLabel, api.Cut(text, 63))
	}
	return uint32(number), ""
}

// nodePeer names the session between two nodes. No BGPPeer has such a name, but a condition may.
func nodePeer(node string) string { return "Node." + node }

// PeerNode returns the other node of a session; false if peer is not a node.
func PeerNode(peer string) (node string, ok bool) { return strings.CutPrefix(peer, nodePeer("")) }

// ends returns the addresses of a session between two nodes with a common network, IPv4 before IPv6.
func (in BGPInput) ends(self, other *Node) (own, remote netip.Addr) {
	of := func(n *Node, is4 bool) netip.Addr {
		if i := slices.IndexFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 {
			return n.Addrs[i]
		}
		return netip.Addr{}
	}
	for _, is4 := range []bool{true, false} {
		if own, remote = of(self, is4), of(other, is4); own.IsValid() && remote.IsValid() && in.OnLink != nil && in.OnLink(remote) {
			return own, remote
		}
	}
	return netip.Addr{}, netip.Addr{}
}

// between returns the session of self with another node; false if they have no common network.
func (in BGPInput) between(self, other *Node) (c SessionConfig, ok bool) {
	own, remote := in.ends(self, other)
	return SessionConfig{
		Peer: nodePeer(other.Name), Address: netip.AddrPortFrom(remote, in.ReflectorPort), Source: own, RouterID: routerID(self),
		Hold: reflectorHold, Keepalive: reflectorKeepalive, Connect: reflectorConnect, IPv4: true, IPv6: true, Reflected: true,
	}, remote.IsValid()
}

// with returns the session with an ASN. If two nodes have two sessions, BFD watches only one.
func (c SessionConfig) with(asn uint32, watched bool) SessionConfig {
	c.LocalASN, c.PeerASN = asn, asn
	if watched {
		c.BFD = BFD{Receive: reflectorBFD, Transmit: reflectorBFD, Multiplier: reflectorBFDMultiplier}
	}
	return c
}

// accepted returns the podCIDRs that count: a kubelet that joins may claim any.
func (in BGPInput) accepted() *api.AcceptedNodes {
	if in.Accepted != nil {
		return in.Accepted
	}
	var all []api.NodeClaims
	for i := range in.Nodes {
		all = append(all, in.Nodes[i].Claims())
	}
	return api.AcceptNodes(all, api.ClusterFacts{})
}

// add adds a client. If several nodes claim one address, the connected one may announce the podCIDRs of all.
func (r *Reflector) add(c SessionConfig, podCIDRs []netip.Prefix) {
	if i := slices.IndexFunc(r.Clients, func(o Client) bool { return o.Address == c.Address }); i >= 0 {
		r.Clients[i].PodCIDRs = slices.Concat(r.Clients[i].PodCIDRs, podCIDRs)
		return
	}
	r.Clients = append(r.Clients, Client{c, podCIDRs})
}

// reflectors adds the sessions with route reflectors, which carry only podCIDRs. It sets Reflector if the node has the
// label.
func (b *bgpDecider) reflectors() {
	if b.in.ReflectorPort == 0 {
		return
	}
	asn, reason := b.self.reflectorASN()
	var accepted *api.AcceptedNodes
	problem := func(node, reason string) {
		b.out.Problems = append(b.out.Problems, PeerProblem{nodePeer(node), true, reason})
	}
	if reason != "" {
		problem(b.self.Name, reason)
	}
	if asn != 0 {
		b.out.Reflector = &Reflector{ASN: asn, RouterID: routerID(b.self), Listen: b.self.Addrs, Port: b.in.ReflectorPort}
		accepted = b.in.accepted()
	}
	far := ""
	for i := range b.in.Nodes {
		other := &b.in.Nodes[i]
		if other.Name == b.self.Name {
			continue
		}
		theirs, _ := other.reflectorASN()
		if asn == 0 && theirs == 0 {
			continue
		}
		c, ok := b.in.between(b.self, other)
		if asn != 0 && ok {
			b.out.Reflector.add(c.with(asn, theirs == 0), accepted.PodCIDRs(other.Name))
		}
		switch c = c.with(theirs, true); {
		case theirs == 0:
		case !ok:
			far = other.Name
		case len(b.out.Sessions) == MaxSessions:
			problem(other.Name, fmt.Sprintf("a node speaks to %d routers and route reflectors at most", MaxSessions))
		default:
			b.out.Sessions = append(b.out.Sessions, Session{SessionConfig: c})
			b.routes = append(b.routes, map[netip.Prefix]*Route{})
			far = ""
		}
	}
	if far != "" && len(b.out.Sessions) == 0 && asn == 0 {
		problem(far, fmt.Sprintf("the route reflector is in none of this node's networks [label a node there with %s]", ReflectorLabel))
	}
	slices.SortFunc(b.out.Problems, func(x, y PeerProblem) int { return strings.Compare(x.Peer, y.Peer) })
}
