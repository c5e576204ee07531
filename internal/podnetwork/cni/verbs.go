package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	cnins "github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PluginName is the plugin's name for runtimes: its file in the CNI directory, and the "type" in a network
// configuration.
const PluginName = "fairway-cni"

// Main serves one call of a CNI runtime, from environment variables and standard input, and returns the exit status. An
// error goes to standard output as JSON, as the specification requires. argv0 is the name of the program: under
// LoopbackName the program is that plugin.
func Main(argv0, release string) int {
	supported := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	about := fmt.Sprintf("%s %s: the CNI plugin of Fairway. A container runtime starts it with CNI_COMMAND set; see https://www.cni.dev/docs/spec.", PluginName, release)
	funcs := skel.CNIFuncs{Add: add, Del: del, Check: check, GC: gc, Status: status}
	if filepath.Base(argv0) == LoopbackName {
		funcs = skel.CNIFuncs{Add: loopbackUp, Del: loopbackDown, Check: loopbackCheck, GC: noop, Status: noop}
	}
	if failure := skel.PluginMainFuncsWithError(funcs, supported, about); failure != nil {
		if err := failure.Print(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: print error: %v\n", PluginName, err)
		}
		return 1
	}
	return 0
}

func attachmentOf(conf *netConf, args *skel.CmdArgs) attachment {
	return attachment{network: conf.Name, containerID: args.ContainerID, ifName: args.IfName}
}

// OpenNetlink opens a socket for routes, links and addresses of the thread's network namespace. If the kernel does not
// answer for a minute, a call fails.
func OpenNetlink() (netlinksafe.Handle, error) {
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err == nil {
		err = h.SetSocketTimeout(netlink.GetSocketTimeout())
	}
	if err != nil {
		h.Close()
		return h, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// add wires a container.
func add(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	if conf.mappings, err = checkMappings(conf.RuntimeConfig.PortMappings); err != nil {
		return err
	}
	if err := conf.RuntimeConfig.Bandwidth.check(); err != nil {
		return err
	}
	if conf.RawPrevResult != nil {
		return failf(types.ErrInvalidNetworkConfig, "%s makes the pod's interface, so it has to be the first plugin of network %q (move it to the front)", PluginName, conf.Name)
	}
	if same, nsErr := cnins.CheckNetNS(args.Netns); nsErr != nil || same {
		return failf(types.ErrInvalidNetNS, "CNI_NETNS %s is the node's own network namespace (a pod on the host network needs no CNI)", args.Netns)
	}
	podNS, err := ns.GetNS(args.Netns)
	if err != nil {
		return failf(types.ErrInvalidNetNS, "open the pod's network namespace: %v", err)
	}
	defer podNS.Close()
	if err := lockPod(podNS); err != nil {
		return err
	}
	host, err := OpenNetlink()
	if err != nil {
		return err
	}
	defer host.Close()
	if conf.MTU == 0 {
		conf.MTU = uplinkMTU(host)
	}
	w := vethPair{attachment: attachmentOf(conf, args), mtu: conf.MTU, bandwidth: conf.RuntimeConfig.Bandwidth}
	w.alias = w.attachment.alias(podName(args.Args))
	if w.addrs, err = reserve(conf, args.StdinData, args.Args, w.attachment); err != nil {
		return err
	}
	if err := isolatePod(conf, w.attachment, args.Args, w.addrs); err != nil {
		return withCleanup(err, release(conf, w.attachment))
	}
	if err := w.connect(host, podNS); err != nil {
		return withCleanup(err, release(conf, w.attachment))
	}
	if err = w.limit(host); err == nil {
		err = writeHostPorts(conf, w.attachment, args.Args, w.addrs)
	}
	if err == nil {
		if err = types.PrintResult(w.result(conf, args.Netns), conf.CNIVersion); err == nil {
			return nil
		}
		err = fmt.Errorf("print result: %w", err)
	}
	return withCleanup(err, removeHostPorts(conf, w.attachment), w.removeLinks(host), release(conf, w.attachment))
}

// lockPod excludes other ADDs of the same pod until this program ends. If one of them failed, it would release the
// addresses that the other has just taken.
func lockPod(podNS ns.NetNS) error {
	err := unix.Flock(int(podNS.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return failf(types.ErrTryAgainLater, "another ADD of this pod is under way (it will have been made when that ends)")
	}
	if err != nil {
		return fmt.Errorf("lock the pod's network namespace: %w", err)
	}
	return nil
}

// withCleanup keeps the CNI code of the first error, and adds errors of the cleanup to its message.
func withCleanup(err error, cleanup ...error) error {
	failed := errors.Join(cleanup...)
	if failed == nil {
		return err
	}
	var coded *types.Error
	if errors.As(err, &coded) {
		return failf(coded.Code, "%s, and cleaning up: %v", coded.Msg, failed)
	}
	return fmt.Errorf("%w, and cleaning up: %v", err, failed)
}

// result is the answer to the runtime, CHECK and the next plugin of the list.
func (w vethPair) result(conf *netConf, netns string) *current.Result {
	hostMAC, podMAC := w.macs()
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: w.hostLink(), Mac: hostMAC.String(), Mtu: w.mtu},
			{Name: w.ifName, Mac: podMAC.String(), Mtu: w.mtu, Sandbox: netns},
		},
		DNS: conf.DNS,
	}
	for _, addr := range w.addrs {
		result.IPs = append(result.IPs, &current.IPConfig{
			Interface: current.Int(1), Address: *hostPrefix(addr), Gateway: gatewayFor(addr).AsSlice(),
		})
		for _, route := range podRoutes(0, addr) {
			result.Routes = append(result.Routes, &types.Route{Dst: *route.Dst, GW: route.Gw})
		}
	}
	return result
}

// del removes the rest of a container. It needs neither the namespace nor the result of ADD, because a runtime calls
// DEL also when both are gone, and again until it succeeds.
func del(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	host, err := OpenNetlink()
	if err != nil {
		return err
	}
	defer host.Close()
	a := attachmentOf(conf, args)
	// Host ports go first, so that no new connection is sent to the pod. The link goes before the address, because the
	// next pod must not get an address that is still routed to this one.
	if err := removeHostPorts(conf, a); err != nil {
		return err
	}
	if err := a.removeLinks(host); err != nil {
		return err
	}
	_ = forget(conf, a.containerID) // DEL must succeed without an agent
	return release(conf, a)
}

// gc removes everything of this network that belongs to no attachment in the runtime's list of valid ones.
func gc(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	// An empty list means that no attachment is valid. A missing list is a mistake, which must not cut off every pod.
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(args.StdinData, &keys); err != nil {
		return failf(types.ErrDecodingFailure, "read network configuration: %v", err)
	}
	if _, listed := keys["cni.dev/valid-attachments"]; !listed {
		return failf(types.ErrInvalidNetworkConfig, "GC needs the list cni.dev/valid-attachments (the runtime adds it; nothing was removed)")
	}
	validLinks, valid := map[string]bool{}, map[attachment]bool{}
	for _, v := range conf.ValidAttachments {
		a := attachment{network: conf.Name, containerID: v.ContainerID, ifName: v.IfName}
		valid[a], validLinks[a.hostLink()] = true, true
	}
	failed := errors.Join(gcHostPorts(conf, validLinks), gcLinks(conf.Name, validLinks))
	gone := forgetful(conf)
	return errors.Join(failed, releaseUnused(conf, func(a attachment) bool {
		if !valid[a] {
			gone(a.containerID)
		}
		return valid[a]
	}))
}

func gcLinks(network string, valid map[string]bool) error {
	host, err := OpenNetlink()
	if err != nil {
		return err
	}
	defer host.Close()
	links, err := host.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	failed := removeShapers(host, links, network, valid)
	for _, link := range links {
		attrs := link.Attrs()
		if link.Type() == "veth" && ofNetwork(attrs, network) && !valid[attrs.Name] {
			failed = errors.Join(failed, removeLink(host, attrs.Name))
		}
	}
	return failed
}

// status reports whether ADD could succeed now. It does not count free addresses: without any the node would become
// NotReady, and lose the pods that it carries well.
func status(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	ipam, err := ranges(conf, args.StdinData, "")
	if err != nil {
		return failf(types.ErrPluginNotAvailable, "%v", err)
	}
	if err := os.MkdirAll(ipam.DataDir, 0o755); err != nil {
		return failf(types.ErrPluginNotAvailable, "make the address store: %v (ipam.dataDir has to be writable)", err)
	}
	for _, set := range ipam.Ranges {
		first, _ := netip.AddrFromSlice(set[0].RangeStart)
		name := "ipv6/conf/all/forwarding"
		if first.Unmap().Is4() {
			name = "ipv4/ip_forward"
		}
		value, err := sysctl.Sysctl("net/" + name)
		if err != nil {
			return failf(types.ErrPluginNotAvailable, "read forwarding: %v (does the kernel have this address family?)", err)
		}
		if value == "0" {
			return failf(types.ErrLimitedConnectivity, "the node does not forward: net/%s is 0 (is the fairway agent running with --pod-network routes?)", name)
		}
	}
	return nil
}
