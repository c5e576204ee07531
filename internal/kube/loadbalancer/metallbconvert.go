package loadbalancer

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// linkByEndpoints is the value of kube.AnnotationLink that announces a node's number of endpoints to routers.
const linkByEndpoints = "endpoints"

// selectors reads label selectors. An invalid selector matches nothing.
func selectors(field string, all []metav1.LabelSelector, bad *kube.Problems) []api.Selector {
	var out []api.Selector
	for i := range all {
		out = append(out, kube.ReadSelector(fmt.Sprintf("%s[%d]", field, i), &all[i], bad))
	}
	return out
}

func convertPool(o *unstructured.Unstructured) *ipam.Pool {
	var spec ipAddressPoolSpec
	var bad kube.Problems
	kube.ReadSpec(o, &spec, &bad)
	p := &ipam.Pool{
		Name: o.GetName(), Labels: o.GetLabels(), Created: kube.Created(o.GetCreationTimestamp()),
		AutoAssign: ptr.Deref(spec.AutoAssign, true), AvoidBuggyIPs: spec.AvoidBuggyIPs,
	}
	for _, message := range spec.Addresses {
		r, err := ipam.ParseRange(message)
		if err != nil {
			bad.Add(kube.ReasonConfiguration, "addresses: %v; it is left out", err)
			continue
		}
		p.Ranges = append(p.Ranges, r)
	}
	if a := spec.ServiceAllocation; a != nil {
		p.Allocation = &ipam.Allocation{
			Priority: a.Priority, Namespaces: a.Namespaces,
			NamespaceSelectors: selectors("serviceAllocation.namespaceSelectors", a.NamespaceSelectors, &bad),
			ServiceSelectors:   selectors("serviceAllocation.serviceSelectors", a.ServiceSelectors, &bad),
		}
	}
	p.Problems = bad
	return p
}

func convertL2Advertisement(o *unstructured.Unstructured) *announce.L2Advertisement {
	var spec l2AdvertisementSpec
	var bad kube.Problems
	kube.ReadSpec(o, &spec, &bad)
	a := &announce.L2Advertisement{
		Name: o.GetName(), IPAddressPools: spec.IPAddressPools, Interfaces: spec.Interfaces,
		IPAddressPoolSelectors: selectors("ipAddressPoolSelectors", spec.IPAddressPoolSelectors, &bad),
		NodeSelectors:          selectors("nodeSelectors", spec.NodeSelectors, &bad),
		ServiceSelectors:       selectors("serviceSelectors", spec.ServiceSelectors, &bad),
	}
	for i, p := range spec.PreferredNodeSelectors {
		field := fmt.Sprintf("preferredNodeSelectors[%d]", i)
		if p.Weight < 1 || p.Weight > 100 {
			bad.Add(kube.ReasonConfiguration, "%s: weight %d is not in 1-100", field, p.Weight)
		}
		a.PreferredNodeSelectors = append(a.PreferredNodeSelectors,
			announce.PreferredNodeSelector{Weight: p.Weight, Preference: kube.ReadSelector(field, &p.Preference, &bad)})
	}
	a.Problems = bad
	return a
}

func convertBGPAdvertisement(o *unstructured.Unstructured) *announce.BGPAdvertisement {
	var spec bgpAdvertisementSpec
	var bad kube.Problems
	kube.ReadSpec(o, &spec, &bad)
	a := &announce.BGPAdvertisement{
		Name: o.GetName(), LocalPref: spec.LocalPref, Communities: spec.Communities, IPAddressPools: spec.IPAddressPools, Peers: spec.Peers,
		AggregationLength: ptr.Deref(spec.AggregationLength, 32), AggregationLengthV6: ptr.Deref(spec.AggregationLengthV6, 128),
		IPAddressPoolSelectors: selectors("ipAddressPoolSelectors", spec.IPAddressPoolSelectors, &bad),
		NodeSelectors:          selectors("nodeSelectors", spec.NodeSelectors, &bad),
		ServiceSelectors:       selectors("serviceSelectors", spec.ServiceSelectors, &bad),
	}
	if n := a.AggregationLength; n < 1 || n > 32 {
		bad.Add(kube.ReasonConfiguration, "aggregationLength %d is not in 1-32", n)
	}
	if n := a.AggregationLengthV6; n < 1 || n > 128 {
		bad.Add(kube.ReasonConfiguration, "aggregationLengthV6 %d is not in 1-128", n)
	}
	if len(a.ServiceSelectors) > 0 && (a.AggregationLength != 32 || a.AggregationLengthV6 != 128) {
		bad.Add(kube.ReasonConfiguration, "serviceSelectors and an aggregation length exclude each other: the prefix would announce other Services too")
	}
	a.Problems = bad
	if message, ok := o.GetAnnotations()[kube.AnnotationLink]; ok {
		if a.LinkBandwidth = message == linkByEndpoints; !a.LinkBandwidth {
			var odd kube.Problems
			odd.Add(kube.ReasonAnnotation, "annotation %s: %q is not %s; routers hear of no bandwidth", kube.AnnotationLink, kube.ReadAnnotation(message), linkByEndpoints)
			a.Ignored = odd
		}
	}
	return a
}

func convertBGPPeer(o *unstructured.Unstructured) *announce.BGPPeer {
	var spec bgpPeerSpec
	var bad kube.Problems
	kube.ReadSpec(o, &spec, &bad)
	addr := func(field, message string) netip.Addr {
		if message == "" {
			return netip.Addr{}
		}
		a, err := netip.ParseAddr(message)
		if err != nil {
			bad.Add(kube.ReasonConfiguration, "%s %q is not an IP address", field, api.Cut(message, 100))
		}
		return a.Unmap()
	}
	p := &announce.BGPPeer{
		Name: o.GetName(), Created: o.GetCreationTimestamp().Time, MyASN: spec.MyASN, PeerASN: spec.PeerASN, DynamicASN: spec.DynamicASN, LocalASN: spec.LocalASN,
		PeerAddress: addr("peerAddress", spec.PeerAddress), Interface: spec.Interface,
		SourceAddress: addr("sourceAddress", spec.SourceAddress), RouterID: addr("routerID", spec.RouterID),
		PeerPort: spec.PeerPort, NodeSelectors: selectors("nodeSelectors", spec.NodeSelectors, &bad),
		Password: spec.Password, PasswordSecret: spec.PasswordSecret.Name, BFDProfile: spec.BFDProfile,
		EnableGracefulRestart: spec.EnableGracefulRestart, EBGPMultiHop: spec.EBGPMultiHop, VRF: spec.VRF,
		DisableMP: spec.DisableMP, DualStackAddressFamily: spec.DualStackAddressFamily,
	}
	if p.PeerPort == 0 {
		p.PeerPort = 179 // BGP's port; v1beta1 has no default
	}
	if spec.ConnectTime != nil {
		p.ConnectTime = spec.ConnectTime.Duration
	}
	p.HoldTime, p.KeepaliveTime = bgpTimers(spec.HoldTime, spec.KeepaliveTime)
	checkPeer(p, &bad)
	p.Problems = bad
	return p
}

// bgpTimers computes missing times from each other, or takes the values that RFC 4271 suggests.
func bgpTimers(hold, keepalive *metav1.Duration) (time.Duration, time.Duration) {
	switch {
	case hold != nil && keepalive != nil:
		return hold.Duration, keepalive.Duration
	case hold != nil:
		return hold.Duration, hold.Duration / 3
	case keepalive != nil:
		return keepalive.Duration * 3, keepalive.Duration
	}
	return 90 * time.Second, 30 * time.Second
}

// checkPeer repeats the checks of our CRD, because the cluster may have another CRD.
func checkPeer(p *announce.BGPPeer, bad *kube.Problems) {
	for _, rule := range []struct {
		broken  bool
		message string
	}{
		{p.MyASN == 0, "myASN is missing"},
		{(p.PeerASN == 0) == (p.DynamicASN == ""), "one of peerASN and dynamicASN must be given, and not both"},
		{p.DynamicASN != "" && p.DynamicASN != announce.DynamicASNInternal && p.DynamicASN != announce.DynamicASNExternal, "dynamicASN is neither internal nor external"},
		{p.PeerAddress.IsValid() == (p.Interface != ""), "one of peerAddress and interface must be given, and not both"},
		{p.PeerASN == p.MyASN && p.EBGPMultiHop, "ebgpMultiHop makes no sense for a peer with our own ASN"},
		{p.Password != "" && p.PasswordSecret != "", "password and passwordSecret exclude each other"},
		{p.HoldTime != 0 && p.HoldTime < 3*time.Second, "holdTime is neither 0 nor at least 3s"},
		{p.KeepaliveTime < 0 || p.KeepaliveTime > p.HoldTime, "keepaliveTime is longer than holdTime"},
		{p.ConnectTime != 0 && (p.ConnectTime < time.Second || p.ConnectTime > 65535*time.Second || p.ConnectTime%time.Second != 0), "connectTime is not a whole number of seconds from 1 to 65535"},
		{p.RouterID.IsValid() && !p.RouterID.Is4(), "routerID is not an IPv4 address"},
	} {
		if rule.broken {
			bad.Add(kube.ReasonConfiguration, "%s", rule.message)
		}
	}
}

func convertBFDProfile(o *unstructured.Unstructured) *announce.BFDProfile {
	var spec bfdProfileSpec
	var bad kube.Problems
	kube.ReadSpec(o, &spec, &bad)
	within := func(field string, n, least, most int) int {
		if n < least || n > most {
			bad.Add(kube.ReasonConfiguration, "%s %d is not in %d-%d", field, n, least, most)
		}
		return n
	}
	interval := func(field string, n *int, or int) time.Duration {
		return time.Duration(within(field, ptr.Deref(n, or), 10, 60000)) * time.Millisecond
	}
	p := &announce.BFDProfile{
		Name:             o.GetName(),
		ReceiveInterval:  interval("receiveInterval", spec.ReceiveInterval, 300),
		TransmitInterval: interval("transmitInterval", spec.TransmitInterval, 300),
		EchoInterval:     interval("echoInterval", spec.EchoInterval, 50),
		DetectMultiplier: within("detectMultiplier", ptr.Deref(spec.DetectMultiplier, 3), 2, 255),
		EchoMode:         spec.EchoMode, PassiveMode: spec.PassiveMode,
		MinimumTTL: within("minimumTtl", spec.MinimumTTL, 0, 254),
	}
	p.Problems = bad
	return p
}

func convertCommunity(o *unstructured.Unstructured) *announce.Community {
	var spec communitySpec
	var bad kube.Problems
	kube.ReadSpec(o, &spec, &bad)
	c := &announce.Community{Name: o.GetName()}
	for _, a := range spec.Communities {
		c.Aliases = append(c.Aliases, announce.CommunityAlias(a))
	}
	c.Problems = bad
	return c
}
