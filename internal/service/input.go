package service

import (
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Service has the fields of a Kubernetes Service that this package needs. The API edge (internal/kube) fills it and
// lists unreadable parts in Problems.
type Service struct {
	api.Name
	// ClusterIPs are the Service's own addresses, one for each family. Headless and ExternalName Services have none,
	// and no Frontends.
	ClusterIPs []netip.Addr
	// ExternalIPs and BalancerIPs are addresses for clients outside the cluster. ExternalIPs come from
	// spec.externalIPs. BalancerIPs come from status.loadBalancer.ingress, for load balancers that do not change
	// packets (ipMode VIP).
	ExternalIPs, BalancerIPs []netip.Addr
	// Sources are loadBalancerSourceRanges: the clients that may use BalancerIPs. Empty: all clients.
	Sources []netip.Prefix
	Ports   []Port
	// A BalancerIP may be a node's own address only on these ports. They come from the status, which users cannot
	// write. On other ports such an address is refused.
	CheckedPorts []CheckedPort
	// OnNodes says that the BalancerIPs are nodes' own addresses (ServiceLB). Each node serves only its own.
	OnNodes bool
	// Affinity is sessionAffinity ClientIP's timeout; 0: none.
	Affinity time.Duration
	// Balance is the Service's algorithm if Balanced is set; otherwise the node's default counts.
	Balance  Algorithm
	Balanced bool
	// Ejection replaces Node.Ejection; 0: it does not.
	Ejection time.Duration
	// Weighted says that the weights of the endpoints count.
	Weighted bool
	// Termination says when a TCP connection ends because its endpoint went away.
	Termination TerminationPolicy
	// HealthCheckNodePort is the port on which load balancers ask whether this node has endpoints. It counts only with
	// ExternalLocal. 0: no port.
	HealthCheckNodePort uint16
	// InternalLocal and ExternalLocal are internalTrafficPolicy: Local and
	// externalTrafficPolicy: Local.
	InternalLocal, ExternalLocal bool
	// Created orders Services that claim the same address: the oldest has it. Seconds since 1970; 0 is the oldest.
	Created int64
	// Egress selects the pods that leave the cluster with BalancerIPs; nil: none.
	Egress *Egress
	// Problems name the parts of the object that made no sense and were left out.
	Problems []api.Problem
}

// An Egress selects the pods of a Service's namespace that leave the cluster with its addresses.
type Egress struct {
	// All selects all pods of the namespace. Otherwise pods need all labels of Selector, which is not empty.
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

// A CheckedPort is a port that a load balancer may have on a node's own address.
type CheckedPort struct {
	Proto api.Proto
	Port  uint16
}

// A Slice has the fields of an EndpointSlice that this package needs.
type Slice struct {
	api.Name
	Service   api.Name // the Service's name
	Ports     []SlicePort
	Endpoints []SliceEndpoint
	Pods      PodNames // the pods of the Endpoints, in the same order
	Problems  []api.Problem
}

// A SlicePort is the port number on a Slice's pods for the Service port with that name and protocol.
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
	// Weight is the pod's share of new connections in a Weighted Service. It counts only with HasWeight; otherwise it
	// is 1. A pod of weight 0 gets no new connections and keeps its existing connections. If all usable endpoints have
	// weight 0, they count as equal.
	Weight    uint16
	HasWeight bool
	// NodeHints and ZoneHints name the nodes and zones that should use the endpoint.
	NodeHints, ZoneHints []string
}

// Changes counts the changes of objects so far, and the pending changes, which no table has yet.
type Changes struct{ Services, Endpoints, ServicesPending, EndpointsPending uint64 }
