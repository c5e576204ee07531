package main

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/test/peers/apiserver"
)

// configuration is the configuration of both programs, with kube-proxy's defaults. It leaves the machine's sysctls of
// conntrack alone.
const configuration = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node-1
clusterCIDR: 10.128.0.0/9
nodePortAddresses: [primary]
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// A world is a number of Services with a number of endpoints each, and a Service of 100 pods for a rolling update.
type world struct {
	api *apiserver.Server
	size
	// changes counts the replaced endpoints. Each new endpoint has an address that no earlier one had.
	changes int
}

func (w *world) fill() {
	w.api.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.0.11"}}},
	})
	for i := range w.services {
		w.api.Put(w.service(i))
		addrs := make([]netip.Addr, w.endpoints)
		for k := range addrs {
			addrs[k] = podAddr(w.endpoints*i + k)
		}
		// The controller puts a hundred endpoints into a slice.
		for k, part := range slices.Collect(slices.Chunk(addrs, perSlice)) {
			w.api.Put(w.slice(i, k, part...))
		}
	}
	w.api.Put(w.service(w.rolled()))
	w.roll(0, 0)
}

const perSlice = 100

// rolled is the number of the Service for the rolling update.
func (w *world) rolled() int { return w.services + 10 }

// roll sets the state of a rolling update of 100 pods after a number of new pods. The next pod does not exist yet, or
// exists besides the old one, or the old one is terminating.
func (w *world) roll(done, phase int) {
	s := w.slice(w.rolled(), 0)
	for i := range 100 {
		was, is := nth("10.220.0.1", i), nth("10.221.0.1", i)
		switch {
		case i > done, i == done && phase == 0:
			s.Endpoints = append(s.Endpoints, endpoint(was, i))
		case i < done:
			s.Endpoints = append(s.Endpoints, endpoint(is, i))
		default:
			old := endpoint(was, i)
			if phase == 2 {
				old.Conditions.Ready, old.Conditions.Terminating = new(false), new(true)
			}
			s.Endpoints = append(s.Endpoints, endpoint(is, i), old)
		}
	}
	w.api.Put(s)
}

func endpoint(a netip.Addr, i int) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{a.String()}, NodeName: new(fmt.Sprintf("node-%d", 1+i%10)),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
	}
}

func meta(i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", i%50), Name: fmt.Sprintf("service-%d", i)}
}

// nth returns the n-th address after another.
func nth(from string, n int) netip.Addr {
	a := netip.MustParseAddr(from).As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func podAddr(i int) netip.Addr { return nth("10.128.0.1", i) }

func (w *world) service(i int) *corev1.Service {
	ip := nth("10.96.0.1", i).String()
	return &corev1.Service{ObjectMeta: meta(i), Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}}
}

func (w *world) slice(i, part int, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(i), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}}}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name}
	if part > 0 {
		s.Name = fmt.Sprintf("%s-%d", s.Name, part)
	}
	for k, a := range addrs {
		s.Endpoints = append(s.Endpoints, endpoint(a, i+k))
	}
	return s
}

// replaceEndpoint replaces the second endpoint of a Service, and returns the new address.
func (w *world) replaceEndpoint() netip.Addr {
	i := w.changes * 7919 % w.services
	w.changes++
	fresh := nth("10.200.0.1", w.changes)
	addrs := []netip.Addr{podAddr(w.endpoints * i), fresh}
	for k := 2; k < min(w.endpoints, perSlice); k++ {
		addrs = append(addrs, podAddr(w.endpoints*i+k))
	}
	w.api.Put(w.slice(i, 0, addrs...))
	return fresh
}
