package gateway

import (
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Kind is a kind of object that the package reads or refers to.
type Kind string

// The kinds, as the API writes them.
const (
	KindGatewayClass     Kind = "GatewayClass"
	KindGateway          Kind = "Gateway"
	KindListenerSet      Kind = "ListenerSet"
	KindHTTPRoute        Kind = "HTTPRoute"
	KindGRPCRoute        Kind = "GRPCRoute"
	KindTLSRoute         Kind = "TLSRoute"
	KindTCPRoute         Kind = "TCPRoute"
	KindUDPRoute         Kind = "UDPRoute"
	KindReferenceGrant   Kind = "ReferenceGrant"
	KindBackendTLSPolicy Kind = "BackendTLSPolicy"
	KindIngress          Kind = "Ingress"
	KindIngressClass     Kind = "IngressClass"
	KindNamespace        Kind = "Namespace"
	KindService          Kind = "Service"
	KindSecret           Kind = "Secret"
	KindConfigMap        Kind = "ConfigMap"
	KindRoutePolicy      Kind = "RoutePolicy" // group fairway.net
)

// A Ref names an object. Cluster-scoped kinds have no namespace.
type Ref struct {
	Kind Kind
	api.Name
}

// Meta is what all objects have.
type Meta struct {
	api.Name
	UID        string
	Generation int64
	Created    int64 // seconds since 1970: the older of two objects wins a conflict
	Labels     map[string]string
}

// An Object is one of this file's types. The API edge (kube/gateway) fills them. An absent field is the zero value: the
// package, not the edge, knows the API's defaults.
type Object interface {
	Ref() Ref
	meta() *Meta
}

// A Class is a GatewayClass.
type Class struct {
	Meta
	Controller string
	Parameters bool // it has a parametersRef
}

// A Gateway is a Gateway.
type Gateway struct {
	Meta
	Class     string
	Listeners []ListenerSpec
	// Addresses are spec.addresses of type IPAddress. Others are in OtherAddresses, as "type value".
	Addresses      []netip.Addr
	OtherAddresses []string
	// AllowedListeners says which namespaces' ListenerSets may attach. The zero value: none.
	AllowedListeners Namespaces
	// Labels and annotations of spec.infrastructure, for the objects that a Gateway makes.
	InfrastructureLabels, InfrastructureAnnotations map[string]string
	InfrastructureParameters                        bool // it has a parametersRef
	// BackendCertificate is the client certificate for backends with TLS. Its kind is empty without one.
	BackendCertificate ObjectRef
	// Frontend has the clients' CAs for all HTTPS listeners, and for one port.
	Frontend        *Validation
	FrontendPerPort map[uint16]*Validation // nil value: no validation on this port
	// Bind maps a listener's port to the port at which the gateway's process listens for this Gateway. The edge
	// allocates it. A port that is absent is not served yet.
	Bind map[BindKey]uint16
}

// A BindKey is a port of a Gateway's address.
type BindKey struct {
	Proto api.Proto // TCP or UDP
	Port  uint16
}

// A ListenerSet adds listeners to a Gateway.
type ListenerSet struct {
	Meta
	Parent    ObjectRef
	Listeners []ListenerSpec
}

// A ListenerSpec is one listener of a Gateway or a ListenerSet.
type ListenerSpec struct {
	Name     string
	Hostname string // empty: all
	Port     uint16
	Protocol string // HTTP, HTTPS, TLS, TCP, UDP, or unknown
	TLS      *ListenerTLS
	Allowed  *AllowedRoutes // nil: the kinds of the protocol, of the same namespace
}

// ListenerTLS is the TLS of a listener.
type ListenerTLS struct {
	Mode         string // Terminate (empty), Passthrough
	Certificates []ObjectRef
	Options      map[string]string
}

// A Validation names the CAs of clients' certificates.
type Validation struct {
	Mode string // AllowValidOnly (empty), AllowInsecureFallback
	CAs  []ObjectRef
}

// AllowedRoutes says which routes may attach to a listener.
type AllowedRoutes struct {
	Namespaces Namespaces // From empty: Same
	Kinds      []GroupKind
}

// Namespaces is a choice of namespaces.
type Namespaces struct {
	From     string // All, Same, Selector, None
	Selector api.Selector
}

// A GroupKind is an API group and a kind.
type GroupKind struct{ Group, Kind string }

// An ObjectRef is a reference as a user wrote it. The edge fills Group and Kind with the field's defaults; an empty
// Namespace is the referrer's.
type ObjectRef struct {
	GroupKind
	Namespace, Name string
	Section         string
	Port            uint16 // 0: none
}

// A RouteCommon is what all routes have.
type RouteCommon struct {
	Meta
	Parents   []ObjectRef
	Hostnames []string
}

// An HTTPRoute is an HTTPRoute.
type HTTPRoute struct {
	RouteCommon
	Rules []HTTPRule
}

// An HTTPRule is a rule of an HTTPRoute.
type HTTPRule struct {
	Name     string
	Matches  []HTTPMatch // none: all requests
	Filters  []FilterSpec
	Backends []BackendRef
	// Timeouts; 0: none. HasRequest and HasBackend tell "0s" (no limit) from an absent field.
	Timeout, BackendTimeout time.Duration
	Retry                   *Retry
	Session                 *Session
	BadTimeouts             bool // a timeout cannot be read
}

// An HTTPMatch is a condition of an HTTPRoute. All parts have to hold.
type HTTPMatch struct {
	Path    StringMatch // Type Exact, PathPrefix, RegularExpression; Value empty: PathPrefix "/"
	Headers []NamedMatch
	Query   []NamedMatch
	Method  string // empty: all
}

// A StringMatch compares a text.
type StringMatch struct {
	Type  string // Exact (empty for headers and queries), PathPrefix, RegularExpression
	Value string
}

// A NamedMatch compares a header or a query parameter.
type NamedMatch struct {
	Name string
	StringMatch
}

// A GRPCRoute is a GRPCRoute.
type GRPCRoute struct {
	RouteCommon
	Rules []GRPCRule
}

// A GRPCRule is a rule of a GRPCRoute.
type GRPCRule struct {
	Name     string
	Matches  []GRPCMatch
	Filters  []FilterSpec
	Backends []BackendRef
	Session  *Session
}

// A GRPCMatch is a condition of a GRPCRoute.
type GRPCMatch struct {
	Type            string // Exact (empty), RegularExpression
	Service, Method string // empty: all
	Headers         []NamedMatch
}

// An L4Route is a TLSRoute, a TCPRoute or a UDPRoute.
type L4Route struct {
	RouteCommon
	Kind  Kind
	Rules []L4Rule
}

// An L4Rule is a rule of an L4Route.
type L4Rule struct {
	Name     string
	Backends []BackendRef
}

// A BackendRef is a backend as a user wrote it.
type BackendRef struct {
	ObjectRef
	Weight  uint32 // the edge fills in the default 1
	Filters []FilterSpec
}

// A FilterSpec is a filter as a user wrote it: its type and the field of that type.
type FilterSpec struct {
	Type            string
	RequestHeaders  *HeaderChange
	ResponseHeaders *HeaderChange
	Mirror          *MirrorSpec
	Redirect        *Redirect
	Rewrite         *Rewrite
	CORS            *CORS
	Extension       *ObjectRef
}

// A MirrorSpec is a RequestMirror filter. Without Numerator and Denominator all requests are copied.
type MirrorSpec struct {
	Backend                ObjectRef
	Numerator, Denominator uint32
}

// A Grant is a ReferenceGrant: objects of From may refer to objects of To in the Grant's namespace.
type Grant struct {
	Meta
	From []GrantFrom
	To   []GrantTo
}

// A GrantFrom is a kind of one namespace.
type GrantFrom struct {
	GroupKind
	Namespace string
}

// A GrantTo is a kind, or one object of it.
type GrantTo struct {
	GroupKind
	Name string // empty: all
}

// A BackendTLSPolicy says how to speak TLS to Services.
type BackendTLSPolicy struct {
	Meta
	Targets   []ObjectRef // Section: a port's name
	CAs       []ObjectRef
	WellKnown string // System
	Hostname  string
	SANs      []SAN
	Options   map[string]string
}

// A SAN is a name that a backend's certificate must have.
type SAN struct{ Type, Value string }

// An IngressClass is an IngressClass.
type IngressClass struct {
	Meta
	Controller string
	Default    bool
}

// An Ingress is an Ingress.
type Ingress struct {
	Meta
	Annotations map[string]string
	Class       string // spec.ingressClassName, or the annotation kubernetes.io/ingress.class
	Default     *IngressBackend
	TLS         []IngressTLS
	Rules       []IngressRule
}

// An IngressTLS is a certificate for hosts.
type IngressTLS struct {
	Hosts  []string
	Secret string
}

// An IngressRule has the paths of a host.
type IngressRule struct {
	Host  string
	Paths []IngressPath
}

// An IngressPath is a path of an Ingress.
type IngressPath struct {
	Path, Type string // Exact, Prefix, ImplementationSpecific
	Backend    IngressBackend
}

// An IngressBackend is a port of a Service, by number or by name, or another resource.
type IngressBackend struct {
	Service  string
	Port     uint16
	PortName string
	Resource string // "group/kind/name", not supported
}

// A Namespace is a Namespace.
type Namespace struct{ Meta }

// A Service has what routes need to know of a Service. Endpoints are not part of it.
type Service struct {
	Meta
	Headless bool
	External string // externalName
	Ports    []ServicePort
}

// A ServicePort is a port of a Service.
type ServicePort struct {
	Name        string
	Proto       api.Proto
	Port        uint16
	AppProtocol string
}

// A Secret is a Secret that a listener, a Gateway or an Ingress names.
type Secret struct {
	Meta
	Type string
	Data map[string][]byte
}

// A ConfigMap is a ConfigMap that a validation names.
type ConfigMap struct {
	Meta
	Data map[string]string
}
