package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/fairway-net/fairway/internal/service"
)

// maxWeight is the largest weight of a pod: a datapath may keep a slot for each.
const maxWeight = 256

// maxWeightProblems is how many bad weights are named of one slice: enough to see what
// is wrong with them.
const maxWeightProblems = 3

// podSelector selects the pods of a Service.
type podSelector struct{ namespace, labels string }

// maxSelector is how long a selector may be, in bytes. The API server has no limit but that
// of an object's size, and refuses requests whose URL is long; a real selector has a few
// labels.
const maxSelector = 4096

// selectorOf returns how to find the pods of a Service that asks for weights, nil if
// there is nothing to find, or the selector is too long to ask with.
func selectorOf(o *corev1.Service) (*podSelector, *service.Problem) {
	if len(o.Spec.Selector) == 0 {
		return nil, nil
	}
	length := 0
	for k, v := range o.Spec.Selector {
		length += len(k) + len(v) + len("=,")
	}
	if length > maxSelector {
		return nil, &service.Problem{Reason: "SelectorTooLong", Message: fmt.Sprintf(
			"annotation %s has no effect: the selector is longer than %d bytes", annotationWeights, maxSelector)}
	}
	return &podSelector{o.Namespace, labels.SelectorFromSet(o.Spec.Selector).String()}, nil
}

// A PodWeight is what the proxy needs to know of a Pod: nothing, unless it has a weight.
type PodWeight struct {
	Pod    string // its name
	Addrs  []netip.Addr
	Weight uint16
	// Problem is why the weight, which is 1 then, cannot be what the pod says.
	Problem string
}

// ConvertPod cuts a Pod to its weight; nil if it has none. Pods that have ended have
// none either: their addresses may be another's by now.
func ConvertPod(o *corev1.Pod) *PodWeight {
	text, ok := o.Annotations[annotationWeight]
	if !ok || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil
	}
	p := &PodWeight{Pod: o.Name, Weight: 1}
	for _, ip := range o.Status.PodIPs {
		if a, err := parseAddr(ip.IP); err == nil {
			p.Addrs = append(p.Addrs, a)
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil || n > maxWeight {
		p.Problem = fmt.Sprintf("Pod %s: annotation %s: %q is no number from 0 to %d; 1 counts", o.Name, annotationWeight, text, maxWeight)
		return p
	}
	p.Weight = uint16(n)
	return p
}

// WithWeights returns the slices with the weights of those pods. The slices that it is
// given stay as they are. Where two pods have one address (on the host's network), the
// one whose name comes first counts.
func WithWeights(all []*service.Slice, pods []*PodWeight) []*service.Slice {
	if len(pods) == 0 {
		return all
	}
	pods = slices.SortedFunc(slices.Values(pods), func(a, b *PodWeight) int { return strings.Compare(a.Pod, b.Pod) })
	of := make(map[netip.Addr]*PodWeight, len(pods))
	for _, p := range pods {
		for _, a := range p.Addrs {
			if of[a] == nil {
				of[a] = p
			}
		}
	}
	out := make([]*service.Slice, len(all))
	for i, s := range all {
		weighed := *s
		weighed.Endpoints = slices.Clone(s.Endpoints)
		var bad problems
		for j := range weighed.Endpoints {
			e := &weighed.Endpoints[j]
			p := of[e.Addr]
			if p == nil {
				continue
			}
			e.Weight, e.HasWeight = p.Weight, true
			if p.Problem != "" && len(bad) < maxWeightProblems {
				bad.add("InvalidWeight", "%s", p.Problem)
			}
		}
		weighed.Problems = slices.Concat(s.Problems, bad)
		out[i] = &weighed
	}
	return out
}
