package api

import (
	"fmt"
	"strings"
)

// Proto is a transport protocol by its IP protocol number. The zero value is not
// a protocol.
type Proto uint8

// The protocols that a Service port may have.
const (
	TCP  Proto = 6
	UDP  Proto = 17
	SCTP Proto = 132
)

// String returns the name as Kubernetes writes it: "TCP", "UDP", "SCTP".
func (p Proto) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("Proto(%d)", uint8(p))
}

// ParseProto is the inverse of String, in any case. An empty string is TCP, the
// default of the Kubernetes API.
func ParseProto(s string) (Proto, error) {
	switch strings.ToUpper(s) {
	case "", "TCP":
		return TCP, nil
	case "UDP":
		return UDP, nil
	case "SCTP":
		return SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q is not TCP, UDP or SCTP", s)
}

// Name names a Kubernetes object within its kind.
type Name struct{ Namespace, Name string }

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// PortName names one port of one Service. Port is empty for an unnamed port.
type PortName struct {
	Name
	Port string
}

// String returns "namespace/name:port", or "namespace/name" for an unnamed port,
// as kube-proxy writes it.
func (n PortName) String() string {
	if n.Port == "" {
		return n.Name.String()
	}
	return n.Name.String() + ":" + n.Port
}

// ParsePortName is the inverse of PortName.String.
func ParsePortName(s string) (PortName, error) {
	ns, rest, ok := strings.Cut(s, "/")
	if !ok {
		return PortName{}, fmt.Errorf("service port name %q lacks a namespace", s)
	}
	name, port, _ := strings.Cut(rest, ":")
	return PortName{Name{ns, name}, port}, nil
}

// ParseName reads "namespace/name", as a person writes it.
func ParseName(text string) (Name, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.ContainsAny(name, "/:") {
		return Name{}, fmt.Errorf("%q does not name a Service [write NAMESPACE/SERVICE]", text)
	}
	return Name{namespace, name}, nil
}
