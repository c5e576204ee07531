package networkpolicy

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Direction is a direction of a pod's packets: sent or received.
type Direction uint8

// The directions. They index arrays.
const (
	Egress Direction = iota
	Ingress
)

// String returns "egress" or "ingress".
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// A Policy is a NetworkPolicy.
type Policy struct {
	Name     api.Name
	UID      string
	Selector api.Selector // of the namespace's pods
	// Isolates has the directions of the policyTypes.
	Isolates [2]bool
	Rules    [2][]Rule
}

// A Rule allows some peers on some ports. No Peers: all addresses. No Ports: all ports of all protocols.
type Rule struct {
	Peers []Peer
	Ports []Port
	// NoPeer and NoPort: the rule has peers or ports, but none that is supported. It allows nothing.
	NoPeer, NoPort bool
}

// A Peer is some pods, a block of addresses, or nodes. Without Block, Nodes and Namespaces it is pods of the policy's
// own namespace.
type Peer struct {
	Pods       *api.Selector // nil: all pods of the namespaces
	Namespaces *api.Selector // nil: the policy's own
	Block      *Block
	Nodes      *api.Selector // not nil: the addresses of the nodes that it selects
}

// A Block is a range of addresses with exceptions.
type Block struct {
	CIDR   netip.Prefix
	Except []netip.Prefix
}

// Contains reports whether the block has the address.
func (b *Block) Contains(a netip.Addr) bool {
	return b.CIDR.Contains(a) && !slices.ContainsFunc(b.Except, func(p netip.Prefix) bool { return p.Contains(a) })
}

// A Port is one port, a range up to and including Last, all ports of a protocol (0 to 65535), or a name. The
// destination pod gives a name its number.
type Port struct {
	Proto       api.Proto
	First, Last uint16
	Name        string
}

// A Sandbox is a pod of this node that the CNI plugin made. Its address is isolated without any grant until the pod is
// known.
type Sandbox struct {
	Pod api.Name
	UID string // empty: the container runtime does not tell
	// Container is the ID of the sandbox at the runtime, cut to a length that tells sandboxes apart.
	Container string
}

// Dirty names the objects that changed or are gone.
type Dirty struct {
	Pods, Policies                     []api.Name
	Namespaces, ClusterPolicies, Nodes []string
}
