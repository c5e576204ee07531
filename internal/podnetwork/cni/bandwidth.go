package cni

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bandwidth is the runtimeConfig of the capability "bandwidth", from Kubernetes' annotations
// kubernetes.io/ingress-bandwidth and egress-bandwidth. Rates are in bits a second, bursts in bits. A rate of 0 means
// no limit. Ingress is towards the pod.
type bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// The size of a bucket in bytes, and the longest wait for tokens. A bucket smaller than a full packet would let no
// packet pass. Runtimes that know only rates ask for a burst of 512 MB, and then a pod would meet its limit only after
// minutes. A burst of 50 ms is enough to keep the rate at the timers' granularity.
const (
	minBurst    = 32 << 10
	burstTime   = 20 // parts of a second: 50 ms
	maxBurst    = 64 << 20
	queueTime   = 40 // parts of a second: 25 ms, as the plugin bandwidth
	minRate     = 1000
	shaperStart = "fi"
)

func (b *bandwidth) check() error {
	if b == nil {
		return nil
	}
	for name, rate := range map[string]uint64{"ingressRate": b.IngressRate, "egressRate": b.EgressRate} {
		if rate > 0 && rate < minRate {
			return failf(types.ErrInvalidNetworkConfig, "bandwidth: %s %d is below %d bits a second", name, rate, minRate)
		}
	}
	return nil
}

// shaper returns the name of the link for packets from a limited pod. The kernel queues packets only on the way out of
// a link, so these packets are sent through a link of their own.
func (a attachment) shaper() string {
	return shaperStart + strings.TrimPrefix(a.hostLink(), linkPrefix)
}

// limit applies the pod's limits on the host side of the wire. After an error removeShaper removes the rest.
//
//	to the pod:    node ─▶ fw… (tbf) ─▶ pod
//	from the pod:  pod ─▶ fw… ─ingress, mirred─▶ fi… (tbf) ─▶ the stack, as if from fw…
func (w vethPair) limit(host netlinksafe.Handle) error {
	b := w.bandwidth
	if b == nil || b.IngressRate == 0 && b.EgressRate == 0 {
		return nil
	}
	link, err := host.LinkByName(w.hostLink())
	if err != nil {
		return fmt.Errorf("limit bandwidth: find link %s: %w", w.hostLink(), err)
	}
	if b.IngressRate > 0 {
		if err := shape(host, link, b.IngressRate, b.IngressBurst); err != nil {
			return fmt.Errorf("limit bandwidth to the pod: %w", err)
		}
	}
	if b.EgressRate > 0 {
		if err := w.limitEgress(host, link, b); err != nil {
			return fmt.Errorf("limit bandwidth from the pod: %w", err)
		}
	}
	return nil
}

func (w vethPair) limitEgress(host netlinksafe.Handle, link netlink.Link, b *bandwidth) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = w.shaper(), w.mtu, group(w.network)
	if err := host.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("create link %s: %w [the kernel needs the module ifb]", attrs.Name, err)
	}
	ifb, err := host.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", attrs.Name, err)
	}
	if err := host.LinkSetAlias(ifb, w.alias); err != nil {
		return fmt.Errorf("name link %s: %w", attrs.Name, err)
	}
	// Packets have their own link again after the shaper. Without an IPv6 address on it the kernel deletes the link
	// twice as fast.
	if err := setSysctls([]setting{{"ipv6/conf/" + attrs.Name + "/disable_ipv6", "1"}}); err != nil {
		return err
	}
	if err := host.LinkSetUp(ifb); err != nil {
		return fmt.Errorf("set %s up: %w", attrs.Name, err)
	}
	if err := shape(host, ifb, b.EgressRate, b.EgressBurst); err != nil {
		return err
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
	if err := host.QdiscAdd(ingress); err != nil {
		return fmt.Errorf("add an ingress qdisc to %s: %w [the kernel needs the module sch_ingress]", w.hostLink(), err)
	}
	redirect := &netlink.U32{ // no selector: it matches every packet
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions:     []netlink.Action{netlink.NewMirredAction(ifb.Attrs().Index)},
	}
	if err := host.FilterAdd(redirect); err != nil {
		return fmt.Errorf("send what comes from %s through %s: %w [the kernel needs the modules cls_u32 and act_mirred]", w.hostLink(), attrs.Name, err)
	}
	return nil
}

// shape limits the send rate of a link, in bits a second.
func shape(host netlinksafe.Handle, link netlink.Link, rate, burst uint64) error {
	rate, burst = rate/8, burst/8
	bucket := max(minBurst, rate/burstTime)
	if burst > 0 {
		bucket = min(bucket, max(minBurst, burst))
	}
	bucket = min(bucket, maxBurst)
	tbf := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate, Limit: uint32(min(bucket+rate/queueTime, 1<<31)), Buffer: netlink.Xmittime(rate, uint32(bucket)),
	}
	if err := host.QdiscReplace(tbf); err != nil {
		return fmt.Errorf("add a token bucket filter to %s: %w [the kernel needs the module sch_tbf]", link.Attrs().Name, err)
	}
	return nil
}

// checkLimits compares the links with the limits of the runtime.
func (w vethPair) checkLimits(host netlinksafe.Handle) error {
	b := w.bandwidth
	if b == nil {
		return nil
	}
	for name, rate := range map[string]uint64{w.hostLink(): b.IngressRate, w.shaper(): b.EgressRate} {
		if rate == 0 {
			continue
		}
		link, err := host.LinkByName(name)
		if err != nil {
			return failf(codeBandwidth, "find link %s, which limits the bandwidth: %v %s", name, err, advice)
		}
		all, err := host.QdiscList(link)
		if err != nil {
			return failf(codeBandwidth, "list the qdiscs of %s: %v %s", name, err, advice)
		}
		have := uint64(0)
		for _, q := range all {
			if tbf, ok := q.(*netlink.Tbf); ok {
				have = tbf.Rate * 8
			}
		}
		if have != rate/8*8 {
			return failf(codeBandwidth, "link %s sends at %d bits a second, not at %d %s", name, have, rate, advice)
		}
	}
	return nil
}

// ofShaper reports whether a link is a shaper of the network.
func ofShaper(link netlink.Link, network string) bool {
	return link.Type() == "ifb" && ofNetwork(link.Attrs(), network)
}

// removeShapers removes the network's shapers whose wires are not valid.
func removeShapers(host netlinksafe.Handle, links []netlink.Link, network string, valid map[string]bool) (failed error) {
	for _, link := range links {
		name := link.Attrs().Name
		if ofShaper(link, network) && !valid[linkPrefix+strings.TrimPrefix(name, shaperStart)] {
			failed = errors.Join(failed, removeLink(host, name))
		}
	}
	return failed
}
