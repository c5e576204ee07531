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

// The namespaces of the machine in front, between the nodes and the client.
const (
	Router = "router"
	Edge   = "edge"
)

// plugFront connects the machine in front to the nodes' network. The nodes reach the client through their gateway,
// which routes to the machine in front. If the machine is an Edge, the gateway also routes the Edge's addresses.
//
//	client ── .1 front .253 ── br0 ── nodes
func (f Fabric) plugFront(plan Plan) error {
	if err := f.attach(plan.Front, Switch, bridge, plan.FrontAddrs(), Addrs(plan.Gateway())); err != nil {
		return err
	}
	// Hash by ports as well. With addresses alone, all connections of a client would reach one node.
	err := f.forwards(plan.Front, map[string]string{
		"ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1",
	})
	if err != nil {
		return err
	}
	return f.with(Switch, func(h *netlink.Handle) error {
		behind := [][]netip.Prefix{plan.pick(clientNet4, clientNet6)}
		if plan.Front == Edge { // nodes send packets for these addresses to the Edge: ipMode Proxy
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

// forwards makes a namespace forward packets, with more settings below /proc/sys/net.
func (f Fabric) forwards(name string, more map[string]string) error {
	settings := map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
		// No redirects to a shorter way: every node must keep its given route.
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

// podsTable is a routing table with the routes to pods. Only packets from the control plane use it, because a router
// between two node subnets has no routes to pods.
const podsTable = 49

// RoutePods lets the control plane reach the pods of node n. pods is the node's pod CIDR, and via is the node's
// address.
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
