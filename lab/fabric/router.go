package fabric

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/kernel/sysctl"
)

// The namespaces of the machine between the nodes and the client, where the plan has one.
const (
	Router = "router"
	Edge   = "edge"
)

// plugFront makes the machine in front: its end in the nodes' network, and the client behind it. What
// the nodes send to the client goes by their gateway, which knows the way; and to addresses that an Edge has.
//
//	client ── .1 front .253 ── br0 ── nodes
func (f Fabric) plugFront(plan Plan) error {
	if err := f.attach(plan.Front, Switch, bridge, plan.FrontAddrs(), Addrs(plan.Gateway())); err != nil {
		return err
	}
	// By ports too: by addresses alone all connections of a client would meet one node.
	err := f.forwards(plan.Front, map[string]string{
		"ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1",
	})
	if err != nil {
		return err
	}
	return f.with(Switch, func(h *netlink.Handle) error {
		behind := [][]netip.Prefix{plan.pick(clientNet4, clientNet6)}
		if plan.Front == Edge { // nodes leave these addresses to it: ipMode Proxy
			behind = append(behind, plan.Routed())
		}
		for _, subnets := range behind {
			for i, subnet := range subnets {
				if err := h.RouteReplace(route(subnet, plan.FrontAddrs()[i].Addr())); err != nil {
					return fmt.Errorf("route to %s: %w", subnet, err)
				}
			}
		}
		return nil
	})
}

// plugClient makes the outside client, behind the namespace hub.
func (f Fabric) plugClient(plan Plan, hub string) error {
	if err := f.attach(Client, hub, "", plan.Client(), Addrs(plan.ClientGateway())); err != nil {
		return err
	}
	return f.with(hub, func(h *netlink.Handle) error { return address(h, Client, plan.ClientGateway()) })
}

// forwards makes a namespace a router, with further settings below /proc/sys/net.
func (f Fabric) forwards(name string, more map[string]string) error {
	settings := map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
		// No hint to a node to take a shorter way: each has the one that it is given.
		"ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0",
	}
	maps.Copy(settings, more)
	return f.Do(name, func() error {
		for path, value := range settings {
			err := sysctl.WriteFile("/proc/sys/net/"+path, value)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("set up %s: %w", name, err)
			}
		}
		return nil
	})
}

// podsTable has the routes to pods for packets of the control plane, and for no others: a router
// between two subnets of nodes knows nothing of pods.
const podsTable = 49

// RoutePods lets the control plane reach the pods of node n, whose addresses pods has, by the node's address via.
func (f Fabric) RoutePods(plan Plan, n int, pods netip.Prefix, via netip.Addr) error {
	if plan.Subnet(n) == 1 {
		return f.Route(ControlPlane, pods, via)
	}
	for i, own := range plan.ControlPlane() {
		if own.Addr().Is4() != via.Is4() {
			continue
		}
		if err := f.Route(ControlPlane, pods, plan.Gateway()[i].Addr()); err != nil {
			return err
		}
		err := f.with(Switch, func(h *netlink.Handle) error {
			r := route(pods, via)
			r.Table = podsTable
			if err := h.RouteReplace(r); err != nil {
				return err
			}
			rule := netlink.NewRule()
			rule.Src, rule.Table, rule.Priority = route(netip.PrefixFrom(own.Addr(), own.Addr().BitLen()), via).Dst, podsTable, podsTable
			if err := h.RuleAdd(rule); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("route the control plane to pods %s: %w", pods, err)
		}
	}
	return nil
}

func route(dst netip.Prefix, via netip.Addr) *netlink.Route {
	return &netlink.Route{
		Dst: &net.IPNet{IP: net.IP(dst.Addr().AsSlice()), Mask: net.CIDRMask(dst.Bits(), dst.Addr().BitLen())},
		Gw:  net.IP(via.AsSlice()),
	}
}
