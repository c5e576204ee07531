package cni

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// The codes of CHECK. The specification leaves 100 and above to plugins.
const (
	codeLink      uint = 100
	codeAddress   uint = 101
	codeRoute     uint = 102
	codeNeighbour uint = 103
	codeStore     uint = 104
	codeHostPorts uint = 105
	codeBandwidth uint = 106
)

// advice ends every message of CHECK, because only the administrator can repair, not the runtime.
const advice = "(delete the pod to have it wired again)"

// check compares the kernel and the address store with the result of ADD.
func check(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	w := vethPair{attachment: attachmentOf(conf, args), bandwidth: conf.RuntimeConfig.Bandwidth}
	if w.addrs, err = previousAddrs(conf, args.IfName); err != nil {
		return err
	}
	stored, err := storedAddrs(conf, w.attachment)
	if err != nil {
		return err
	}
	for _, addr := range w.addrs {
		if !stored[addr] {
			return failf(codeStore, "address %s is not reserved for this container in %s %s", addr, conf.IPAM.DataDir, advice)
		}
	}
	if err := checkHostPorts(conf, w.attachment); err != nil {
		return err
	}
	if err := w.checkHost(); err != nil {
		return err
	}
	podNS, err := ns.GetNS(args.Netns)
	if err != nil {
		return failf(types.ErrInvalidNetNS, "open the pod's network namespace: %v", err)
	}
	defer podNS.Close()
	return podNS.Do(func(ns.NetNS) error { return w.checkPod() })
}

// previousAddrs returns the addresses that ADD gave to the interface.
func previousAddrs(conf *netConf, ifName string) ([]netip.Addr, error) {
	if conf.RawPrevResult == nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "CHECK needs prevResult, the answer of ADD (the runtime adds it)")
	}
	if err := version.ParsePrevResult(&conf.PluginConf); err != nil {
		return nil, failf(types.ErrDecodingFailure, "read prevResult: %v", err)
	}
	result, err := current.NewResultFromResult(conf.PrevResult)
	if err != nil {
		return nil, failf(types.ErrDecodingFailure, "read prevResult: %v", err)
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		if ip.Interface == nil || *ip.Interface < 0 || *ip.Interface >= len(result.Interfaces) ||
			result.Interfaces[*ip.Interface].Name != ifName {
			continue
		}
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, addr.Unmap())
	}
	if len(addrs) == 0 {
		return nil, failf(types.ErrInvalidNetworkConfig, "prevResult holds no address of interface %s (the runtime has to pass the answer of ADD unchanged)", ifName)
	}
	return addrs, nil
}

func (w vethPair) checkHost() error {
	host, err := OpenNetlink()
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := upLink(host, w.hostLink())
	if err != nil {
		return err
	}
	_, podMAC := w.macs()
	for _, addr := range w.addrs {
		if err := checkRoute(host, HostRoute(link.Attrs().Index, addr)); err != nil {
			return err
		}
		if err := checkNeighbour(host, link, addr, podMAC); err != nil {
			return err
		}
	}
	return w.checkLimits(host)
}

// checkPod runs in the pod's namespace.
func (w vethPair) checkPod() error {
	pod, err := OpenNetlink()
	if err != nil {
		return err
	}
	defer pod.Close()
	link, err := upLink(pod, w.ifName)
	if err != nil {
		return err
	}
	addrs, err := pod.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	present := map[netip.Addr]bool{}
	for _, a := range addrs {
		addr, _ := netip.AddrFromSlice(a.IP)
		present[addr.Unmap()] = true
	}
	hostMAC, _ := w.macs()
	for _, addr := range w.addrs {
		if !present[addr] {
			return failf(codeAddress, "%s lacks its address %s %s", w.ifName, addr, advice)
		}
		for _, route := range podRoutes(link.Attrs().Index, addr) {
			if err := checkRoute(pod, route); err != nil {
				return err
			}
		}
		if err := checkNeighbour(pod, link, gatewayFor(addr), hostMAC); err != nil {
			return err
		}
	}
	return nil
}

func upLink(h netlinksafe.Handle, name string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, failf(codeLink, "find link %s: %v %s", name, err, advice)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return nil, failf(codeLink, "link %s is down %s", name, advice)
	}
	return link, nil
}

// checkRoute finds a route with the same destination, gateway and link.
func checkRoute(h netlinksafe.Handle, want *netlink.Route) error {
	family := netlink.FAMILY_V6
	if want.Dst.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	routes, err := h.RouteListFiltered(family, want, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if route.Gw.Equal(want.Gw) {
			return nil
		}
	}
	return failf(codeRoute, "the route to %s is missing %s", want.Dst, advice)
}

func checkNeighbour(h netlinksafe.Handle, link netlink.Link, addr netip.Addr, mac net.HardwareAddr) error {
	family := netlink.FAMILY_V6
	if addr.Is4() {
		family = netlink.FAMILY_V4
	}
	neighbours, err := h.NeighList(link.Attrs().Index, family)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbours {
		if n.IP.Equal(addr.AsSlice()) && n.State&netlink.NUD_PERMANENT != 0 && n.HardwareAddr.String() == mac.String() {
			return nil
		}
	}
	return failf(codeNeighbour, "the neighbour entry of %s on %s is missing or wrong %s", addr, link.Attrs().Name, advice)
}
