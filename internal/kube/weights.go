package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// maxWeight is the largest weight of a pod: a datapath may keep a slot for each.
const maxWeight = 256

// maxWeightProblems is how many bad weights are named of one Service: enough to see what
// is wrong with them.
const maxWeightProblems = 3

// annotationEndpointWeights of an EndpointSlice is what the controller writes, for the agents
// of all nodes: "10.0.0.1=3 10.0.0.2=0", sorted by address. An address that is not in it
// has no weight of its own.
const annotationEndpointWeights = "fairway.net/endpoint-weights"

// maxEndpointWeights bounds that annotation, in bytes: the API server allows 1,000 endpoints
// in a slice, with addresses of at most 39 characters.
const maxEndpointWeights = 48 << 10

const reasonWeight = "InvalidWeight"

// A PodWeight is what the controller needs to know of a Pod: nothing, unless it has a weight.
type PodWeight struct {
	Weight uint16
	// Problem is why the weight, which is 1 then, cannot be what the pod says.
	Problem string
}

// ConvertPod cuts a Pod to its weight; nil if it has none.
func ConvertPod(o *corev1.Pod) *PodWeight {
	text, ok := o.Annotations[annotationWeight]
	if !ok {
		return nil
	}
	n, err := parseWeight(strings.TrimSpace(text))
	if err != nil {
		return &PodWeight{Weight: 1, Problem: fmt.Sprintf("Pod %s: annotation %s: %v; using 1", o.Name, annotationWeight, err)}
	}
	return &PodWeight{Weight: n}
}

// parseWeight reads a weight.
func parseWeight(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n > maxWeight {
		return 0, fmt.Errorf("%q is not a number from 0 to %d", readAnnotation(text), maxWeight)
	}
	return uint16(n), nil
}

// formatWeights returns the annotation for the weights of a slice's endpoints; empty if none
// has one.
func formatWeights(s *service.Slice) string {
	var b strings.Builder
	last := netip.Addr{}
	for i := range s.Endpoints { // sorted by address
		e := &s.Endpoints[i]
		if !e.HasWeight || e.Addr == last {
			continue
		}
		last = e.Addr
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%v=%d", e.Addr, e.Weight)
	}
	return b.String()
}

// readWeights gives the endpoints of a slice the weights that its annotation has for them.
// What cannot be read is left out; one problem says so.
func readWeights(o *discoveryv1.EndpointSlice, s *service.Slice) {
	text := o.Annotations[annotationEndpointWeights]
	if text == "" {
		return
	}
	var bad problems
	if len(text) > maxEndpointWeights {
		bad.add(reasonWeight, "EndpointSlice %s: annotation %s is longer than %d bytes; it is left out", o.Name, annotationEndpointWeights, maxEndpointWeights)
		s.Problems = append(s.Problems, bad...)
		return
	}
	for one := range strings.FieldsSeq(text) {
		at, number, _ := strings.Cut(one, "=")
		addr, err := netip.ParseAddr(at)
		var n uint16
		if err == nil {
			n, err = parseWeight(number)
		}
		if err != nil {
			if len(bad) == 0 {
				bad.add(reasonWeight, "EndpointSlice %s: annotation %s: %q is not ADDRESS=WEIGHT; it is left out", o.Name, annotationEndpointWeights, readAnnotation(one))
			}
			continue
		}
		i, _ := slices.BinarySearchFunc(s.Endpoints, addr, func(e service.SliceEndpoint, a netip.Addr) int { return e.Addr.Compare(a) })
		for ; i < len(s.Endpoints) && s.Endpoints[i].Addr == addr; i++ {
			s.Endpoints[i].Weight, s.Endpoints[i].HasWeight = n, true
		}
	}
	s.Problems = append(s.Problems, bad...)
}

// withWeights returns a slice with the weights that find knows of its pods, and what is
// wrong with them, of at most so many pods. The slice that it is given stays as it is. Where
// two pods have one address (on the host's network), the one whose name comes first counts.
func withWeights(s *service.Slice, find func(pod api.Name) (*PodWeight, bool), most int) (*service.Slice, []api.Problem) {
	weighed := *s
	weighed.Endpoints = slices.Clone(s.Endpoints)
	var bad problems
	of := map[netip.Addr]string{} // the pod whose weight counts
	for i, pod := range s.Pods.All(len(s.Endpoints)) {
		e := &weighed.Endpoints[i]
		e.Weight, e.HasWeight = 0, false
		if first, ok := of[e.Addr]; pod != "" && (!ok || pod < first) {
			of[e.Addr] = pod
		}
	}
	for i := range weighed.Endpoints {
		e := &weighed.Endpoints[i]
		p, ok := find(api.Name{Namespace: s.Namespace, Name: of[e.Addr]})
		if !ok {
			continue
		}
		e.Weight, e.HasWeight = p.Weight, true
		if p.Problem != "" && len(bad) < most {
			bad.add(reasonWeight, "%s", p.Problem)
		}
	}
	return &weighed, bad
}
