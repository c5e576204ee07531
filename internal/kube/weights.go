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

// maxWeight is the largest weight of a pod, because a datapath may use a slot for each unit.
const maxWeight = 256

// maxWeightProblems is the largest number of invalid weights that are named for one Service.
const maxWeightProblems = 3

// AnnotationEndpointWeights is the annotation of an EndpointSlice that the controller writes for the agents of all
// nodes: "10.0.0.1=3 10.0.0.2=0", sorted by address. A missing address has no weight of its own.
const AnnotationEndpointWeights = "fairway.net/endpoint-weights"

// maxEndpointWeights is the longest annotation, in bytes. The API server allows 1,000 endpoints in a slice, with
// addresses of at most 39 characters.
const maxEndpointWeights = 48 << 10

const reasonWeight = "InvalidWeight"

// A PodWeight is the weight of a Pod.
type PodWeight struct {
	Weight uint16
	// Problem says why the annotation is invalid; the weight is 1 then.
	Problem string
}

// ConvertPod returns a Pod's weight; nil: the Pod has no weight.
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
		return 0, fmt.Errorf("%q is not a number from 0 to %d", ReadAnnotation(text), maxWeight)
	}
	return uint16(n), nil
}

// formatWeights returns the annotation with the weights of a slice's endpoints; empty: no endpoint has a weight.
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

// ReadWeights sets the weights of a slice's endpoints from its annotation. Invalid parts are left out, and cause one
// problem.
func ReadWeights(o *discoveryv1.EndpointSlice, s *service.Slice) {
	text := o.Annotations[AnnotationEndpointWeights]
	if text == "" {
		return
	}
	var bad Problems
	if len(text) > maxEndpointWeights {
		bad.Add(reasonWeight, "EndpointSlice %s: annotation %s is longer than %d bytes; it is left out", o.Name, AnnotationEndpointWeights, maxEndpointWeights)
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
				bad.Add(reasonWeight, "EndpointSlice %s: annotation %s: %q is not ADDRESS=WEIGHT; it is left out", o.Name, AnnotationEndpointWeights, ReadAnnotation(one))
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

// withWeights returns a copy of a slice with its pods' weights, and problems of a limited number of pods. find returns
// the weight of a pod. If two pods share an address (on the host's network), the pod whose name is first counts.
func withWeights(s *service.Slice, find func(pod api.Name) (*PodWeight, bool), most int) (*service.Slice, []api.Problem) {
	weighed := *s
	weighed.Endpoints = slices.Clone(s.Endpoints)
	var bad Problems
	of := map[netip.Addr]string{} // by address: the pod with the weight that counts
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
			bad.Add(reasonWeight, "%s", p.Problem)
		}
	}
	return &weighed, bad
}
