package records

import (
	"net/netip"
	"strings"
)

// A Cluster is the part of a cluster that its DNS answers from.
type Cluster struct {
	// Zone is the cluster's domain; empty means cluster.local.
	Zone       string
	Namespaces []string
	Services   []Service
	// NoPods says that addresses have no names as 10-0-0-1.NAMESPACE.pod (`pods disabled` in a Corefile). If Pods is not
	// nil, only these addresses have names (`pods verified`).
	NoPods bool
	Pods   []Pod
}

// A Pod is an address of a pod.
type Pod struct {
	Namespace string
	Address   netip.Addr
}

// A Service is a Kubernetes Service with its endpoints.
type Service struct {
	Namespace, Name string
	// ClusterIPs are empty for headless and ExternalName Services.
	ClusterIPs []netip.Addr
	// ExternalName is the target of a Service of that type; empty for other types.
	ExternalName string
	Ports        []Port
	Endpoints    []Endpoint
}

// A Port is a named port. Name may be empty.
type Port struct {
	Name   string
	Proto  string // TCP, UDP or SCTP
	Number uint16
}

// An Endpoint is one address of an EndpointSlice with the slice's ports.
type Endpoint struct {
	Address  netip.Addr
	Hostname string // empty: the address with dashes is the name
	Ready    bool
	Ports    []Port
}

// name returns the endpoint's label.
func (e Endpoint) name() string {
	if e.Hostname != "" {
		return e.Hostname
	}
	label := strings.NewReplacer(".", "-", ":", "-").Replace(e.Address.String())
	if strings.HasSuffix(label, "-") {
		label += "0" // a name may not end with a dash
	}
	return label
}

// A Question asks for the records of a type, as "A", of a name. The name is complete: it has no search domain to add.
type Question struct{ Name, Type string }

// A Record is an answer: Data is an address, a name with a dot at the end, or "PRIORITY WEIGHT PORT NAME" for SRV.
type Record struct{ Type, Data string }

// Why is the reason of an answer.
type Why uint8

// The reasons. The name exists for those before OtherZone.
const (
	Found         Why = iota
	AliasOutside      // the answer is a CNAME to a name outside the zone, which upstreams resolve
	AliasBroken       // the Service is an ExternalName for a name of the cluster that has no such record
	OnlyNamespace     // the name is the zone, a namespace, or a part of the zone
	OtherType         // the name has records of other types only
	OtherFamily       // the Service has addresses of the other IP family only
	OtherZone         // the name is outside the zone
	BadName           // no name of a Service or pod has this form
	NoNamespace
	NoService
	BadAlias // an ExternalName that is an address, or has a port or an endpoint before it
	NoPort
	NoEndpoint
	NoReadyEndpoint
	NoPodName // the name holds no address, or none of a pod, or pods have no names
	NoAddress // neither a Service nor a ready endpoint has the address
)

var whyTexts = [...]string{
	Found:           "the name has records of this type",
	AliasOutside:    "the Service is an ExternalName for a name outside the cluster: an upstream answers",
	AliasBroken:     "the Service is an ExternalName for a name of the cluster that has no such record",
	OnlyNamespace:   "the name is a namespace or a part of the zone: it has no records",
	OtherType:       "the name has no records of this type",
	OtherFamily:     "the Service has no address of this IP family",
	OtherZone:       "the name is not in the cluster's zone: an upstream answers",
	BadName:         "no name of a Service or a pod has this form",
	NoNamespace:     "there is no such namespace",
	NoService:       "there is no such Service",
	BadAlias:        "the Service is an ExternalName, which is an address or has no such port or endpoint",
	NoPort:          "the Service has no such port",
	NoEndpoint:      "the Service has no such endpoint",
	NoReadyEndpoint: "the Service has no ready endpoint of this name",
	NoPodName:       "the name is not an address of a pod",
	NoAddress:       "no Service and no ready endpoint has this address",
}

// String returns the reason as a sentence without end mark.
func (w Why) String() string {
	if int(w) < len(whyTexts) {
		return whyTexts[w]
	}
	return "unknown"
}

// Exists reports whether the name exists: the server's answer is NOERROR, else NXDOMAIN.
func (w Why) Exists() bool { return w < OtherZone }
