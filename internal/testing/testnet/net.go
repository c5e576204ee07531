package testnet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// Addresses of the fixed parts of a network. Nodes get .11, .12, … and ::11, ::12, …. The test chooses the addresses of
// pods.
var (
	Nodes4   = netip.MustParsePrefix("172.18.0.0/16")
	Nodes6   = netip.MustParsePrefix("fd00:172:18::/64")
	Outside4 = netip.MustParseAddr("198.51.100.10")
	Outside6 = netip.MustParseAddr("2001:db8:51::10")

	nodesGateway   = []string{"172.18.0.1/16", "fd00:172:18::1/64"}
	outsideGateway = []string{"198.51.100.1/24", "2001:db8:51::1/64"}
	podGateway     = []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")}
	everywhere     = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
)

// A Net is a network: a fabric and its hosts.
type Net struct {
	Fabric  *Namespace
	Outside *Host // a client on another subnet than the nodes

	t      testing.TB
	icmp   bool // every ICMP error is sent
	bridge netlink.Link
	nodes  int
	links  int
}

// A Host is a namespace with addresses: a node, a pod or a client.
type Host struct {
	*Namespace
	Addrs []netip.Addr // reachable addresses; the first of a family is the main address

	t    testing.TB
	net  *Net
	node *Host        // the node of a pod
	eth0 netlink.Link // nil before the host is connected
}

// New makes a network of a fabric and a client outside. Like all methods of Net and Host that make something, it fails
// the test if it cannot.
func New(t testing.TB) *Net {
	t.Helper()
	n := &Net{t: t, Fabric: NewNamespace(t, "fabric")}
	n.must("make the fabric", n.makeBridge())
	n.Outside = n.newHost("outside", Outside4, Outside6)
	n.must("connect outside", n.connectOutside())
	return n
}

func (n *Net) newHost(name string, addrs ...netip.Addr) *Host {
	n.t.Helper()
	h := &Host{Namespace: NewNamespace(n.t, name), Addrs: addrs, t: n.t, net: n}
	if n.icmp {
		n.must("prepare "+name, h.SendEveryICMPError())
	}
	return h
}

// SendEveryICMPError calls the method of that name for the network's hosts. It must come before the first node.
func (n *Net) SendEveryICMPError() {
	n.t.Helper()
	n.icmp = true
	for _, h := range []*Namespace{n.Fabric, n.Outside.Namespace} {
		n.must("prepare "+h.Name, h.SendEveryICMPError())
	}
}

// must fails the test if err is not nil.
func (n *Net) must(what string, err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("testnet: %s: %v", what, err)
	}
}

func (n *Net) makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	// A bridge without a MAC of its own changes it with every port.
	attrs.HardwareAddr = []byte{2, 0, 0, 0, 0, 1}
	if err := n.Fabric.link.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("add bridge (the kernel may lack it): %w", err)
	}
	var err error
	if n.bridge, err = n.Fabric.link.LinkByName("br0"); err != nil {
		return err
	}
	for _, a := range nodesGateway {
		if err := n.Fabric.addAddr(n.bridge, netip.MustParsePrefix(a)); err != nil {
			return err
		}
	}
	return n.Fabric.link.LinkSetUp(n.bridge)
}

func (n *Net) connectOutside() error {
	eth0, port, err := connect(n.Outside.Namespace, "eth0", n.Fabric, "outside")
	if err != nil {
		return err
	}
	n.Outside.eth0 = eth0
	for i, gw := range outsideGateway {
		p := netip.MustParsePrefix(gw)
		if err := n.Fabric.addAddr(port, p); err != nil {
			return err
		}
		if err := n.Outside.addAddr(eth0, netip.PrefixFrom(n.Outside.Addrs[i], p.Bits())); err != nil {
			return err
		}
		if err := n.Outside.addRoute(eth0, everywhere[i], p.Addr()); err != nil {
			return err
		}
	}
	if err := n.Fabric.awaitUp(port); err != nil {
		return err
	}
	return n.Outside.awaitUp(eth0)
}

// Node connects a node to the fabric.
func (n *Net) Node(name string) *Host {
	n.t.Helper()
	n.nodes++
	suffix := 10 + n.nodes
	h := n.newHost(name,
		netip.MustParseAddr(fmt.Sprintf("172.18.0.%d", suffix)),
		netip.MustParseAddr(fmt.Sprintf("fd00:172:18::%d", suffix)))
	n.must("connect "+name, n.connectNode(h))
	return h
}

func (n *Net) connectNode(h *Host) error {
	eth0, port, err := connect(h.Namespace, "eth0", n.Fabric, fmt.Sprintf("node%d", n.nodes))
	if err != nil {
		return err
	}
	h.eth0 = eth0
	if err := n.Fabric.link.LinkSetMaster(port, n.bridge); err != nil {
		return fmt.Errorf("add bridge port: %w", err)
	}
	for i, gw := range nodesGateway {
		p := netip.MustParsePrefix(gw)
		if err := h.addAddr(eth0, netip.PrefixFrom(h.Addrs[i], p.Bits())); err != nil {
			return err
		}
		if err := h.addRoute(eth0, everywhere[i], p.Addr()); err != nil {
			return err
		}
	}
	if err := h.awaitUp(eth0); err != nil {
		return err
	}
	// The bridge gets its carrier, and then its own addresses, with the first port.
	return n.Fabric.awaitUp(n.bridge)
}

// Pod connects a pod to its node and adds a route to it in the fabric.
func (n *Net) Pod(node *Host, name string, addrs ...netip.Addr) *Host {
	n.t.Helper()
	h := n.newHost(name, addrs...)
	h.node = node
	n.links++
	n.must("connect "+name, n.connectPod(h, node, fmt.Sprintf("veth%d", n.links)))
	return h
}

func (n *Net) connectPod(h, node *Host, port string) error {
	inPod, onNode, err := connect(h.Namespace, "eth0", node.Namespace, port)
	if err != nil {
		return err
	}
	h.eth0 = inPod
	for i, gw := range podGateway {
		// No host has the gateway's address: it stands for the other end of the veth pair.
		if err := h.addNeighbor(inPod, gw, onNode.Attrs().HardwareAddr); err != nil {
			return err
		}
		if err := h.addRoute(inPod, everywhere[i], gw); err != nil {
			return err
		}
	}
	for _, a := range h.Addrs {
		if err := h.addAddr(inPod, hostPrefix(a)); err != nil {
			return err
		}
		if err := node.addRoute(onNode, hostPrefix(a), netip.Addr{}); err != nil {
			return err
		}
		if err := node.addNeighbor(onNode, a, inPod.Attrs().HardwareAddr); err != nil {
			return err
		}
		if err := n.Route(hostPrefix(a), node); err != nil {
			return err
		}
	}
	if err := node.awaitUp(onNode); err != nil {
		return err
	}
	return h.awaitUp(inPod)
}

// Route makes the fabric send packets for a prefix to the node. It is for Service addresses that clients elsewhere
// call.
func (n *Net) Route(to netip.Prefix, node *Host) error {
	return n.Fabric.addRoute(n.bridge, to, node.Addr(to.Addr().Is4()))
}

// AddAddr gives the host another address, on its loopback interface. The fabric can reach a node's.
func (h *Host) AddAddr(a netip.Addr) {
	h.t.Helper()
	lo, err := h.link.LinkByName("lo")
	h.net.must("find lo", err)
	h.net.must("add an address to "+h.Name, h.addAddr(lo, hostPrefix(a)))
	h.net.must("await an address of "+h.Name, h.awaitUsable(lo))
	h.net.must("route "+a.String(), h.net.Route(hostPrefix(a), h))
	h.Addrs = append(h.Addrs, a)
}

// Node returns the node of a pod, or nil for a host that is no pod.
func (h *Host) Node() *Host { return h.node }

// Addr returns the main address of a family, or the zero Addr.
func (h *Host) Addr(is4 bool) netip.Addr {
	for _, a := range h.Addrs {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}
