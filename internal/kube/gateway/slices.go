package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// maxEndpoints is the API server's limit for an EndpointSlice.
const maxEndpoints = 1000

// maxStreamWeight is the largest weight of an endpoint, as package kube reads it.
const maxStreamWeight = 256

// A wantedSlice is an EndpointSlice of a Gateway's Service. It is compared by reflection.
type wantedSlice struct {
	Gone         bool
	Service      string
	Gateway, UID string
	IPv6         bool
	Ports        []service.SlicePort
	Endpoints    []service.SliceEndpoint // without weights
	Weights      string
}

// slicesOf returns the EndpointSlices that lead a port, or several ports, to endpoints.
func slicesOf(of wantedSlice, part string, ports []service.SlicePort, endpoints []service.SliceEndpoint, weights map[netip.Addr]uint16) map[string]wantedSlice {
	out := map[string]wantedSlice{}
	for _, v6 := range []bool{false, true} {
		family := slices.DeleteFunc(slices.Clone(endpoints), func(e service.SliceEndpoint) bool { return e.Addr.Is6() != v6 })
		slices.SortFunc(family, func(a, b service.SliceEndpoint) int { return a.Addr.Compare(b.Addr) })
		family = slices.CompactFunc(family, func(a, b service.SliceEndpoint) bool { return a.Addr == b.Addr })
		n := 0
		for chunk := range slices.Chunk(family, maxEndpoints) {
			s := of
			s.IPv6, s.Ports, s.Endpoints = v6, ports, chunk
			var texts []string
			for _, e := range chunk {
				if w, ok := weights[e.Addr]; ok {
					texts = append(texts, fmt.Sprintf("%v=%d", e.Addr, w))
				}
			}
			s.Weights = strings.Join(texts, " ")
			name := fmt.Sprintf("%s-%s-ipv4-%d", of.Service, part, n)
			if v6 {
				name = fmt.Sprintf("%s-%s-ipv6-%d", of.Service, part, n)
			}
			out[name] = s
			n++
		}
	}
	return out
}

// streamEndpoints returns the endpoints of a stream's backends by the number of the endpoints' port, and their weights. A
// backend's weight is divided among its endpoints that are ready.
func (o *Objects) streamEndpoints(backends []gateway.Backend) (byPort map[uint16][]service.SliceEndpoint, weights map[netip.Addr]uint16) {
	byPort, shares := map[uint16][]service.SliceEndpoint{}, map[netip.Addr]float64{}
	for i := range backends {
		b := &backends[i]
		if b.Refused != "" || b.Weight == 0 {
			continue
		}
		ready := map[bool]int{}
		found := o.backendEndpoints(b.Service, byPort)
		for _, e := range found {
			if e.Ready {
				ready[e.Addr.Is6()]++
			}
		}
		for _, e := range found {
			shares[e.Addr] += float64(b.Weight) / float64(max(ready[e.Addr.Is6()], 1))
		}
	}
	most, equal, first := 0.0, true, -1.0
	for _, s := range shares {
		if first < 0 {
			first = s
		}
		most, equal = max(most, s), equal && s == first
	}
	if equal {
		return byPort, nil
	}
	weights = map[netip.Addr]uint16{}
	for a, s := range shares {
		weights[a] = uint16(max(1, math.Round(s/most*maxStreamWeight)))
	}
	return byPort, weights
}

// backendEndpoints returns the endpoints of a Service's port, and adds them to a map by the number of their port.
func (o *Objects) backendEndpoints(port api.PortName, byPort map[uint16][]service.SliceEndpoint) (all []service.SliceEndpoint) {
	for _, s := range o.slices.Of(port.Name) {
		for _, p := range s.Ports {
			if p.Name != port.Port {
				continue
			}
			for _, e := range s.Endpoints {
				e = bare(e)
				byPort[p.Port] = append(byPort[p.Port], e)
				all = append(all, e)
			}
		}
	}
	return all
}

// bare returns an endpoint without its weight and hints.
func bare(e service.SliceEndpoint) service.SliceEndpoint {
	return service.SliceEndpoint{Addr: e.Addr, Node: e.Node, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating}
}

// convertOwnSlice reads an EndpointSlice of ours.
func convertOwnSlice(o *discoveryv1.EndpointSlice) *wantedSlice {
	s := kube.ConvertSlice(o)
	w := &wantedSlice{Service: s.Service.Name, IPv6: o.AddressType == discoveryv1.AddressTypeIPv6, Ports: s.Ports, Weights: o.Annotations[kube.AnnotationEndpointWeights]}
	for _, e := range s.Endpoints {
		w.Endpoints = append(w.Endpoints, bare(e))
	}
	for _, r := range o.OwnerReferences {
		w.Gateway, w.UID = r.Name, string(r.UID)
	}
	return w
}

// applySlice writes or deletes an EndpointSlice.
func (c *Controller) applySlice(ctx context.Context, name api.Name, want wantedSlice, how metav1.ApplyOptions) error {
	client := c.store.Config().Client.DiscoveryV1().EndpointSlices(name.Namespace)
	if want.Gone {
		return kube.NotGone(client.Delete(ctx, name.Name, metav1.DeleteOptions{}))
	}
	kind := discoveryv1.AddressTypeIPv4
	if want.IPv6 {
		kind = discoveryv1.AddressTypeIPv6
	}
	ports, endpoints := []any{}, []any{}
	for _, p := range want.Ports {
		ports = append(ports, map[string]any{"name": p.Name, "protocol": p.Proto.String(), "port": p.Port})
	}
	for _, e := range want.Endpoints {
		m := map[string]any{"addresses": []string{e.Addr.String()}, "conditions": map[string]any{"ready": e.Ready, "serving": e.Serving, "terminating": e.Terminating}}
		if e.Node != "" {
			m["nodeName"] = e.Node
		}
		endpoints = append(endpoints, m)
	}
	meta := map[string]any{"name": name.Name, "namespace": name.Namespace, "ownerReferences": ownerReferences(want.Gateway, want.UID),
		"labels": map[string]string{discoveryv1.LabelServiceName: want.Service, discoveryv1.LabelManagedBy: owner}}
	if want.Weights != "" {
		meta["annotations"] = map[string]string{kube.AnnotationEndpointWeights: want.Weights}
	}
	data, err := json.Marshal(map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
		"addressType": kind, "ports": ports, "endpoints": endpoints})
	if err != nil {
		return fmt.Errorf("encode EndpointSlice %v: %w", name, err)
	}
	_, err = client.Patch(ctx, name.Name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: how.FieldManager, Force: &how.Force})
	return err
}
