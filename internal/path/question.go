package path

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// A Place is FROM: where the packet starts.
type Place struct {
	Kind string     // "Pod", "Node", "Outside"
	Pod  api.Name   // of a Pod
	Node string     // of a Node
	Addr netip.Addr // Outside; invalid: some address
}

// A Destination is TO. One of the fields Service, Pod, Node, Name and Addr is set.
type Destination struct {
	Asked   string
	Service api.Name
	Pod     api.Name
	Node    string
	Name    string // for DNS
	Addr    netip.Addr
	Port    string    // a number or a name of a Service's port; empty: the only one
	Proto   api.Proto // 0: the port's own; TCP without a Service
}

// A Question asks for the way of a connection's first packet.
type Question struct {
	From Place
	To   Destination
	// Follow is the endpoint that the steps follow, if the Service has it. The zero value: the first that gets the packet.
	Follow netip.AddrPort
}

// ParseFrom reads pod/NAMESPACE/NAME, pod/NAME, node/NAME, outside or outside:IP.
func ParseFrom(text, namespace string) (p Place, err error) {
	kind, rest, _ := strings.Cut(text, "/")
	switch strings.ToLower(kind) {
	case "pod", "pods", "po":
		p.Kind = "Pod"
		p.Pod, err = nameIn(rest, namespace)
		return p, err
	case "node", "nodes", "no":
		if rest != "" {
			return Place{Kind: "Node", Node: rest}, nil
		}
	}
	if kind, addr, given := strings.Cut(text, ":"); kind == "outside" {
		p.Kind = "Outside"
		if given {
			if p.Addr, err = netip.ParseAddr(strings.Trim(addr, "[]")); err != nil {
				return p, fmt.Errorf("FROM: %q is not an IP address [write outside:198.51.100.10]", addr)
			}
		}
		return p, nil
	}
	return p, fmt.Errorf("FROM: %q is no place [write pod/NAMESPACE/NAME, node/NAME, outside or outside:IP]", text)
}

// ParseTo reads svc/NAMESPACE/NAME[:PORT], pod/NAMESPACE/NAME[:PORT], node/NAME:PORT, IP:PORT, NAME[:PORT] or a URL. The
// namespace may be left out where it is a default.
func ParseTo(text, namespace string) (d Destination, err error) {
	d.Asked = text
	if u, err := url.Parse(text); err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") {
		text = u.Host
		if u.Port() == "" {
			text += map[string]string{"http": ":80", "https": ":443"}[u.Scheme]
		}
	}
	if i := strings.LastIndexByte(text, '/'); i > 0 && strings.Contains(text[:i], ":") {
		proto, err := api.ParseProto(text[i+1:])
		if err != nil || text[i+1:] == "" {
			return d, fmt.Errorf("TO: %q ends in no protocol [write svc/shop/web:53/UDP]", text)
		}
		d.Proto, text = proto, text[:i]
	}
	kind, rest, _ := strings.Cut(text, "/")
	name, port, _ := strings.Cut(rest, ":")
	d.Port = port
	switch strings.ToLower(kind) {
	case "svc", "service", "services":
		d.Service, err = nameIn(name, namespace)
		return d, err
	case "pod", "pods", "po":
		d.Pod, err = nameIn(name, namespace)
		return d, err
	case "node", "nodes", "no":
		if d.Node = name; name == "" || port == "" {
			err = fmt.Errorf("TO: %q needs a node and a port [write node/node-1:30080]", text)
		}
		return d, err
	}
	if strings.Contains(text, "/") {
		return d, fmt.Errorf("TO: %q is no destination [write svc/NAMESPACE/NAME, pod/NAMESPACE/NAME, node/NAME:PORT, IP:PORT or a name]", text)
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		d.Addr, d.Port = a.Addr().Unmap(), strconv.Itoa(int(a.Port()))
		return d, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		d.Addr, d.Port = a.Unmap(), ""
		return d, nil
	}
	if d.Name, d.Port, _ = strings.Cut(text, ":"); d.Name == "" || len(d.Name) > 253 {
		return d, fmt.Errorf("TO: %q is no destination [write svc/NAMESPACE/NAME, IP:PORT or a name]", text)
	}
	return d, nil
}

// nameIn reads NAMESPACE/NAME or NAME.
func nameIn(text, namespace string) (api.Name, error) {
	if !strings.Contains(text, "/") {
		text = namespace + "/" + text
	}
	n, err := api.ParseName(text)
	if err != nil {
		return n, fmt.Errorf("%q is not a name [write NAMESPACE/NAME]", text)
	}
	return n, nil
}
