package fabric

import (
	"fmt"
	"net/netip"
)

// A Family says which IP families a cluster carries.
type Family string

// The families that a lab can have. Dual stack puts IPv4 first, as a cluster with kube-apiserver's defaults does.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
	Dual Family = "dual-stack"
)

// The addresses of every lab. All labs use the same addresses. No lab has an uplink, so two labs on one machine cannot
// meet.
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

// MaxNodes is the largest number of nodes. The rest of the fabric's subnet is for the control plane and for
// load-balancer addresses.
const MaxNodes = 100

// A Plan is the address plan of one lab. The zero value is not usable: set Family. Methods that return several
// addresses put the primary family first.
type Plan struct {
	Family Family
	// Front is the machine between the client and the nodes. A Router learns the load-balancer addresses, and an Edge
	// owns them. If Front is empty, only the switch is in between.
	Front string
	// TwoSubnets puts the nodes with even numbers into a second subnet. The fabric routes between the two subnets.
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

// Subnet returns the number of node n's subnet, 1 or 2.
func (p Plan) Subnet(n int) int {
	if p.TwoSubnets && n%2 == 0 {
		return 2
	}
	return 1
}

// nets returns the prefixes of a node subnet.
func (p Plan) nets(subnet int) []netip.Prefix {
	if subnet == 2 {
		return p.pick(farNet4, farNet6)
	}
	return p.pick(fabricNet4, fabricNet6)
}

// Subnets returns the number of node subnets.
func (p Plan) Subnets() int {
	if p.TwoSubnets {
		return 2
	}
	return 1
}

// Gateways returns the fabric's own addresses on a node subnet.
func (p Plan) Gateways(subnet int) []netip.Prefix { return p.gateway(subnet) }

// Gateway returns the fabric's own addresses on the first node subnet.
func (p Plan) Gateway() []netip.Prefix { return p.gateway(1) }

func (p Plan) gateway(subnet int) []netip.Prefix { return host(p.nets(subnet), 1) }

// Node returns the addresses of node n, counted from 1.
func (p Plan) Node(n int) []netip.Prefix { return host(p.nets(p.Subnet(n)), n+1) }

// ControlPlane returns the control plane's addresses on the first node subnet.
func (p Plan) ControlPlane() []netip.Prefix { return host(p.pick(fabricNet4, fabricNet6), 254) }

// FrontAddrs returns the addresses of the machine in front on the first node subnet.
func (p Plan) FrontAddrs() []netip.Prefix { return host(p.pick(fabricNet4, fabricNet6), 253) }

// NodeNets returns the prefixes of the first node subnet.
func (p Plan) NodeNets() []netip.Prefix { return p.nets(1) }

// Routed returns the subnets of load-balancer addresses behind the machine in front.
func (p Plan) Routed() []netip.Prefix { return p.pick(routed4, routed6) }

// LoadBalancers returns the ranges of load-balancer addresses. With a machine in front they are in the routed subnets.
// Otherwise they are in the node subnet, above the nodes' addresses.
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

// ClientGateway returns the gateway's addresses on the outside client's subnet.
func (p Plan) ClientGateway() []netip.Prefix { return host(p.pick(clientNet4, clientNet6), 1) }

// Client returns the outside client's addresses.
func (p Plan) Client() []netip.Prefix { return host(p.pick(clientNet4, clientNet6), 10) }

// Pods returns the cluster CIDRs.
func (p Plan) Pods() []netip.Prefix { return p.pick(pods4, pods6) }

// Services returns the service CIDRs.
func (p Plan) Services() []netip.Prefix { return p.pick(services4, services6) }

// DNS returns the addresses of the cluster DNS Service: number 10 of every service CIDR.
func (p Plan) DNS() []netip.Addr { return addrs(host(p.Services(), 10)) }

// APIService returns the addresses of the Service "kubernetes": the first of every service CIDR.
func (p Plan) APIService() []netip.Addr { return addrs(host(p.Services(), 1)) }

// APIServer returns the URL of the API server inside the lab.
func (p Plan) APIServer() string {
	return fmt.Sprintf("https://%s", netip.AddrPortFrom(p.ControlPlane()[0].Addr(), APIPort))
}

// APIPort is the API server's port inside the lab.
const APIPort = 6443

// NodeName returns the Kubernetes name of node n, counted from 1.
func NodeName(n int) string { return fmt.Sprintf("node-%d", n) }

func addrs(prefixes []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Addr()
	}
	return out
}

// Addrs returns the addresses of the prefixes.
func Addrs(prefixes []netip.Prefix) []netip.Addr { return addrs(prefixes) }
