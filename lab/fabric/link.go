package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const bridge = "br0"

// bridges maps the number of a node subnet to its bridge.
var bridges = map[int]string{1: bridge, 2: "br1"}

// Create makes the whole fabric for a cluster with the given number of nodes.
func (f Fabric) Create(plan Plan, nodes int) error {
	if err := f.createSwitch(plan); err != nil {
		return fmt.Errorf("create fabric: %w", err)
	}
	if err := f.PlugControlPlane(plan); err != nil {
		return err
	}
	for n := 1; n <= nodes; n++ {
		if err := f.PlugNode(plan, n); err != nil {
			return err
		}
	}
	if plan.Front == "" {
		return f.plugClient(plan, Switch)
	}
	if err := f.plugFront(plan); err != nil {
		return err
	}
	return f.plugClient(plan, plan.Front)
}

// PlugNode makes node n's namespace and its link to the switch.
func (f Fabric) PlugNode(plan Plan, n int) error {
	subnet := plan.Subnet(n)
	return f.attach(NodeName(n), Switch, bridges[subnet], plan.Node(n), Addrs(plan.gateway(subnet)))
}

// PlugControlPlane makes the control plane's namespace and its link to the switch.
func (f Fabric) PlugControlPlane(plan Plan) error {
	return f.attach(ControlPlane, Switch, bridge, plan.ControlPlane(), Addrs(plan.Gateway()))
}

// PullPlug removes a machine's link, as if its power was cut. The other machines then see no packets that its ending
// processes send. A machine without a link is no error.
func (f Fabric) PullPlug(name string) error {
	return f.with(Switch, func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			return nil
		}
		if err == nil {
			err = h.LinkDel(link)
		}
		if err != nil {
			return fmt.Errorf("take the link of %s away: %w", name, err)
		}
		return nil
	})
}

// createSwitch makes the namespace in the middle: a bridge for the cluster's machines, and a router between the bridge
// and the outside client.
func (f Fabric) createSwitch(plan Plan) error {
	if err := f.create(Switch); err != nil {
		return err
	}
	err := f.forwards(Switch, map[string]string{
		// The fabric is the upstream name server of pods, and nothing listens there. The kernel must refuse every
		// query, not one query a second, so that no pod waits for an answer. The mask also exempts these packets from
		// the kernel's limit for all addresses, which is 50 within 20 ms.
		"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0",
		"ipv4/icmp_ratemask": "0", "ipv6/icmp/ratemask": "2",
	})
	if err != nil {
		return err
	}
	return f.with(Switch, func(h *netlink.Handle) error {
		for subnet, name := range bridges {
			if subnet == 2 && !plan.TwoSubnets {
				continue
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
				return fmt.Errorf("add bridge: %w [needs a kernel with CONFIG_BRIDGE]", err)
			}
			if err := address(h, name, plan.gateway(subnet)); err != nil {
				return err
			}
		}
		return up(h, "lo")
	})
}

// attach makes the namespace name with an interface eth0. The other end is in the namespace hub: a port of master, or a
// plain link if master is empty. attach creates the pair inside the fabric, never in the caller's namespace.
func (f Fabric) attach(name, hub, master string, addrs []netip.Prefix, gateways []netip.Addr) error {
	if err := f.create(name); err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	err := f.with(hub, func(h *netlink.Handle) error { return f.addPair(h, name, master, linkAddress(addrs[0].Addr())) })
	if err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	err = f.with(name, func(h *netlink.Handle) error {
		if err := up(h, "lo"); err != nil {
			return err
		}
		if err := address(h, "eth0", addrs); err != nil {
			return err
		}
		for _, gw := range gateways {
			if err := h.RouteAdd(&netlink.Route{Gw: net.IP(gw.AsSlice())}); err != nil {
				return fmt.Errorf("add default route by %s: %w", gw, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	return nil
}

// linkAddress derives a machine's link address from the last byte of its IP address. The link address therefore stays
// the same when the machine gets a new link.
func linkAddress(addr netip.Addr) net.HardwareAddr {
	bytes := addr.AsSlice()
	return net.HardwareAddr{0x02, 'f', 'w', 0, 0, bytes[len(bytes)-1]}
}

func (f Fabric) addPair(h *netlink.Handle, name, master string, mac net.HardwareAddr) error {
	peer, err := os.Open(f.Path(name))
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer peer.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if master != "" {
		br, err := h.LinkByName(master)
		if err != nil {
			return fmt.Errorf("find bridge: %w", err)
		}
		attrs.MasterIndex = br.Attrs().Index
	}
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(peer.Fd())), PeerHardwareAddr: mac}
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth pair: %w [needs a kernel with CONFIG_VETH]", err)
	}
	return up(h, name)
}

// Route makes the namespace name send packets for dst to via.
func (f Fabric) Route(name string, dst netip.Prefix, via netip.Addr) error {
	return f.with(name, func(h *netlink.Handle) error {
		if err := h.RouteReplace(route(dst, via)); err != nil {
			return fmt.Errorf("route %s by %s in %s: %w", dst, via, name, err)
		}
		return nil
	})
}

// with opens netlink in the namespace name.
func (f Fabric) with(name string, fn func(*netlink.Handle) error) error {
	ns, err := netns.GetFromPath(f.Path(name))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", name, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", name, err)
	}
	defer h.Close()
	return fn(h)
}

func up(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// address gives the link its addresses and sets the link up. It skips duplicate address detection (RFC 4862, 5.4),
// which would keep an IPv6 address unusable for a second. No other host can be on these links.
func address(h *netlink.Handle, name string, addrs []netip.Prefix) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, p := range addrs {
		a := &netlink.Addr{IPNet: &net.IPNet{
			IP:   net.IP(p.Addr().AsSlice()),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, name, err)
		}
	}
	return up(h, name)
}
