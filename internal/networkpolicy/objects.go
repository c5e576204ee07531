package networkpolicy

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Direction is one of a pod's two: what it sends, what it receives.
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
	// Isolates says for which directions it does: its policyTypes.
	Isolates [2]bool
	Rules    [2][]Rule
}

// A Rule is some peers on some ports: what a NetworkPolicy allows. No Peers: all that there are. No Ports: all, of all
// protocols.
type Rule struct {
	Peers []Peer
	Ports []Port
	// NoPeer and NoPort: it had peers, or ports, but none that can be understood. It allows nothing.
	NoPeer, NoPort bool
}

// A Peer is some pods, a block of addresses, or nodes. Without Block, Nodes and Namespaces it
// is pods of the policy's own namespace.
type Peer struct {
	Pods       *api.Selector // nil: all pods of the namespaces
	Namespaces *api.Selector // nil: the policy's own
	Block      *Block
	Nodes      *api.Selector // not nil: the addresses of the nodes that it selects
}

// A Block is a range of addresses without some ranges in it.
type Block struct {
	CIDR   netip.Prefix
	Except []netip.Prefix
}

// Contains reports whether the block has the address.
func (b *Block) Contains(a netip.Addr) bool {
	return b.CIDR.Contains(a) && !slices.ContainsFunc(b.Except, func(p netip.Prefix) bool { return p.Contains(a) })
}

// A Port is a port, a range up to and with Last, all ports of a protocol (0 to 65535), or a
// name that the destination pod gives a number.
type Port struct {
	Proto       api.Proto
	First, Last uint16
	Name        string
}

// A Sandbox is a pod of this node that the CNI plugin made, by its address. It is isolated
// without any grant until the pod is known.
type Sandbox struct {
	Pod api.Name
	UID string // empty: the container runtime does not tell
	// Container is what the runtime calls the sandbox, as much of it as tells sandboxes apart.
	Container string
}

// Dirty are the names of what changed, or is gone.
type Dirty struct {
	Pods, Policies                     []api.Name
	Namespaces, ClusterPolicies, Nodes []string
}
