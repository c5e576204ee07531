package cni

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// LoopbackName is the plugin that sets a pod's lo up. containerd and CRI-O call it for every pod by this name, and fail
// without it. So the agent installs it on machines without a package that has it.
const LoopbackName = "loopback"

// inLoopback runs fn with the pod's lo.
func inLoopback(netns string, fn func(netlinksafe.Handle, netlink.Link) error) error {
	podNS, err := ns.GetNS(netns)
	if err != nil {
		return failf(types.ErrInvalidNetNS, "open the pod's network namespace: %v", err)
	}
	defer podNS.Close()
	return podNS.Do(func(ns.NetNS) error {
		pod, err := OpenNetlink()
		if err != nil {
			return err
		}
		defer pod.Close()
		lo, err := pod.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find link lo: %w", err)
		}
		return fn(pod, lo)
	})
}

func loopbackUp(args *skel.CmdArgs) error {
	conf := types.PluginConf{}
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return failf(types.ErrDecodingFailure, "read network configuration: %v", err)
	}
	err := inLoopback(args.Netns, func(pod netlinksafe.Handle, lo netlink.Link) error {
		return pod.LinkSetUp(lo)
	})
	if err != nil {
		return err
	}
	if conf.RawPrevResult != nil {
		if err := version.ParsePrevResult(&conf); err != nil {
			return failf(types.ErrDecodingFailure, "read prevResult: %v", err)
		}
		return types.PrintResult(conf.PrevResult, conf.CNIVersion)
	}
	// The kernel gives lo its addresses when it goes up.
	return types.PrintResult(&current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: "lo", Mac: "00:00:00:00:00:00", Sandbox: args.Netns}},
		IPs: []*current.IPConfig{
			{Interface: current.Int(0), Address: net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}},
			{Interface: current.Int(0), Address: net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)}},
		},
	}, conf.CNIVersion)
}

// loopbackDown does nothing, because lo ends with the namespace.
func loopbackDown(*skel.CmdArgs) error { return nil }

func loopbackCheck(args *skel.CmdArgs) error {
	return inLoopback(args.Netns, func(_ netlinksafe.Handle, lo netlink.Link) error {
		if lo.Attrs().Flags&net.FlagUp == 0 {
			return failf(codeLink, "link lo is down %s", advice)
		}
		return nil
	})
}

// noop serves verbs that cannot fail for lo.
func noop(*skel.CmdArgs) error { return nil }
