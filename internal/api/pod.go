package api

import (
	"net/netip"
	"time"
)

// A Pod is what policies need to know of a pod. Objects are immutable.
type Pod struct {
	Name    Name
	UID     string
	Node    string
	Created time.Time
	Labels  map[string]string
	// Addrs are its addresses; none of a pod on the host's network, whose traffic is the
	// node's, and none of a pod that has finished, because they may be another pod's by now.
	Addrs []netip.Addr
	// Ports are those that have names.
	Ports []NamedPort
	// HostNetwork: it has the node's network, so that policies do not see it.
	HostNetwork bool
}

// A NamedPort is a port of a pod's containers.
type NamedPort struct {
	Name   string
	Proto  Proto
	Number uint16
}

// A Namespace is what policies need to know of a namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
	// Terminating: it is being deleted, with all that is in it, in no order that helps.
	Terminating bool
}
