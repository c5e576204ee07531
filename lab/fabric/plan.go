package fabric

import (
	"fmt"
	"net/netip"
)

// A Family says which IP families a cluster carries.
type Family string

// The families a lab can have. Dual stack puts IPv4 first, as a cluster made
// with kube-apiserver's defaults does.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
	Dual Family = "dual-stack"
)

// The addresses of every lab. They are the same in each, because no lab has
// an uplink: two labs on one machine cannot meet.
var (
	fabricNet4 = netip.MustParsePrefix("192.168.49.0/24")
	fabricNet6 = netip.MustParsePrefix("fd00:49::/64")
	farNet4    = netip.MustParsePrefix("192.168.50.0/24")
	farNet6    = netip.MustParsePrefix("fd00:50::/64")
	clientNet4 = netip.MustParsePrefix("198.51.100.0/24")
	clientNet6 = netip.MustParsePrefix("2001:db8:100::/64")
	pods4      = netip.MustParsePrefix("10.244.0.0/16")
	pods6      = netip.MustParsePrefix("fd00:10:244::/56")
	services4  = netip.MustParsePrefix("10.96.0.0/12")
	services6  = netip.MustParsePrefix("fd00:10:96::/112")
	routed4    = netip.MustParsePrefix("203.0.113.0/24")
	routed6    = netip.MustParsePrefix("2001:db8:113::/64")
)

// MaxNodes is how many nodes the fabric's subnet has room for, with some left
// at the top for the control plane and for load balancer addresses.
const MaxNodes = 100

// A Plan is the address plan of one lab. The zero value is not usable: set
// Family. All methods that return several addresses put the primary family
// first.
type Plan struct {
	Family Family
	// Front is the machine that the client is behind: a Router, which learns load balancers' addresses, or
	// an Edge, which has them; empty: the switch alone.
	Front string
	// TwoSubnets puts nodes with even numbers into a second subnet; the fabric routes between the two.
	TwoSubnets bool
}

func (p Plan) pick(v4, v6 netip.Prefix) []netip.Prefix {
	switch p.Family {
	case IPv6:
		return []netip.Prefix{v6}
	case Dual:
		return []netip.Prefix{v4, v6}
	default:
		return []netip.Prefix{v4}
	}
}

// host returns address number n of every prefix, with the prefix's length.
func host(prefixes []netip.Prefix, n int) []netip.Prefix {
	out := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		b := p.Addr().As16()
		b[15] += byte(n)
		a := netip.AddrFrom16(b)
		if p.Addr().Is4() {
			a = a.Unmap()
		}
		out[i] = netip.PrefixFrom(a, p.Bits())
	}
	return out
}

// Subnet is the number of node n's subnet, 1 or 2.
func (p Plan) Subnet(n int) int {
	if p.TwoSubnets && n%2 == 0 {
		return 2
	}
	return 1
}

// nets is the node subnet of a number.
func (p Plan) nets(subnet int) []netip.Prefix {
	if subnet == 2 {
		return p.pick(farNet4, farNet6)
	}
	return p.pick(fabricNet4, fabricNet6)
}

// Subnets is how many subnets of nodes there are.
func (p Plan) Subnets() int {
	if p.TwoSubnets {
		return 2
	}
	return 1
}

// Gateways is the fabric's own addresses on a node subnet, by its number.
func (p Plan) Gateways(subnet int) []netip.Prefix { return p.gateway(subnet) }

// Gateway is the fabric's own addresses on the node subnet.
func (p Plan) Gateway() []netip.Prefix { return p.gateway(1) }

func (p Plan) gateway(subnet int) []netip.Prefix { return host(p.nets(subnet), 1) }

// Node is the addresses of node n, counted from 1.
func (p Plan) Node(n int) []netip.Prefix { return host(p.nets(p.Subnet(n)), n+1) }

// ControlPlane is the control plane's addresses on the node subnet.
func (p Plan) ControlPlane() []netip.Prefix { return host(p.pick(fabricNet4, fabricNet6), 254) }

// FrontAddrs is the addresses of the machine in front on the node subnet.
func (p Plan) FrontAddrs() []netip.Prefix { return host(p.pick(fabricNet4, fabricNet6), 253) }

// NodeNets is the node subnet, the first one where there are two.
func (p Plan) NodeNets() []netip.Prefix { return p.nets(1) }

// Routed is the subnets of load balancers' addresses that are behind the machine in front.
func (p Plan) Routed() []netip.Prefix { return p.pick(routed4, routed6) }

// LoadBalancers is the ranges for load balancers' addresses: of the node subnet, behind those of
// nodes, or with a machine in front of the routed ones.
func (p Plan) LoadBalancers() []string {
	first, last := addrs(host(p.NodeNets(), 200)), addrs(host(p.NodeNets(), 239))
	if p.Front != "" {
		first, last = addrs(host(p.Routed(), 10)), addrs(host(p.Routed(), 49))
	}
	out := make([]string, len(first))
	for i := range first {
		out[i] = fmt.Sprintf("%v-%v", first[i], last[i])
	}
	return out
}

// ClientGateway is the fabric's addresses on the outside client's subnet.
func (p Plan) ClientGateway() []netip.Prefix { return host(p.pick(clientNet4, clientNet6), 1) }

// Client is the outside client's addresses.
func (p Plan) Client() []netip.Prefix { return host(p.pick(clientNet4, clientNet6), 10) }

// Pods is the cluster CIDRs.
func (p Plan) Pods() []netip.Prefix { return p.pick(pods4, pods6) }

// Services is the service CIDRs.
func (p Plan) Services() []netip.Prefix { return p.pick(services4, services6) }

// DNS is the cluster DNS Service's addresses: number 10 of every service CIDR.
func (p Plan) DNS() []netip.Addr { return addrs(host(p.Services(), 10)) }

// APIService is the first address of the primary service CIDR of each family:
// the Service "kubernetes".
func (p Plan) APIService() []netip.Addr { return addrs(host(p.Services(), 1)) }

// APIServer is the URL of the API server inside the lab.
func (p Plan) APIServer() string {
	return fmt.Sprintf("https://%s", netip.AddrPortFrom(p.ControlPlane()[0].Addr(), APIPort))
}

// APIPort is the API server's port inside the lab.
const APIPort = 6443

// NodeName is the Kubernetes name of node n, counted from 1.
func NodeName(n int) string { return fmt.Sprintf("node-%d", n) }

func addrs(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Addr()
	}
	return out
}

// Addrs strips the prefix lengths.
func Addrs(prefixes []netip.Prefix) []netip.Addr { return addrs(prefixes) }
