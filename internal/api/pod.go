package api

import (
	"net/netip"
	"time"
)

// A Pod is the part of a pod that matters to policies. Objects are immutable.
type Pod struct {
	Name    Name
	UID     string
	Node    string
	Created time.Time
	Labels  map[string]string
	// Addrs are the pod's addresses. A pod on the host's network has none here, because its traffic is the node's. A
	// finished pod has none either, because another pod may have them now.
	Addrs []netip.Addr
	// Ports are the ports with names.
	Ports []NamedPort
	// HostNetwork means that the pod uses the node's network, so policies do not apply to it.
	HostNetwork bool
}

// A NamedPort is a port of a pod's containers.
type NamedPort struct {
	Name   string
	Proto  Proto
	Number uint16
}

// A Namespace is the part of a namespace that matters to policies.
type Namespace struct {
	Name   string
	Labels map[string]string
	// Terminating means that the API server deletes the namespace and its objects, in any order.
	Terminating bool
}
