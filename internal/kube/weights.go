package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairway-net/fairway/internal/service"
)

// maxWeight is the largest weight of a pod: a datapath may keep a slot for each.
const maxWeight = 256

// maxWeightProblems is how many bad weights are named of one slice: enough to see what
// is wrong with them.
const maxWeightProblems = 3

// podSelector says which pods a Service has.
type podSelector struct{ namespace, labels string }

// selectorOf returns how to find the pods of a Service that asks for weights, nil if
// there is nothing to find.
func selectorOf(o *corev1.Service) *podSelector {
	if len(o.Spec.Selector) == 0 {
		return nil
	}
	return &podSelector{o.Namespace, labels.SelectorFromSet(o.Spec.Selector).String()}
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

// A podWatch knows the weights of the pods of the Services that have one selector and ask
// for weights. Pods of other Services are never asked for.
type podWatch struct {
	pods  *feed[PodWeight]
	users map[service.Name]bool // guarded by src.mu
	stop  context.CancelFunc    // belongs to watchPods; nil: not running
}

func cutPod(obj any) (*PodWeight, int64) {
	o, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, 0
	}
	return ConvertPod(o), 0
}

// serviceChanged follows which pods are asked for. s.mu is held.
func (s *Source) serviceChanged(name service.Name, old, new *serviceRecord, _ int64) {
	s.changes.Services++
	s.changes.ServicesPending++
	s.mark(name, 0)
	var was, is *podSelector
	if old != nil {
		was = old.pods
	}
	if new != nil {
		is = new.pods
	}
	switch {
	case was == nil && is == nil, was != nil && is != nil && *was == *is:
		return
	}
	if was != nil {
		delete(s.podWatches[*was].users, name)
	}
	if is != nil {
		w := s.podWatches[*is]
		if w == nil {
			w = s.newPodWatch()
			s.podWatches[*is] = w
		}
		w.users[name] = true
	}
	select {
	case s.podWake <- struct{}{}:
	default:
	}
}

func (s *Source) newPodWatch() *podWatch {
	w := &podWatch{users: map[service.Name]bool{}}
	w.pods = &feed[PodWeight]{
		src: s, all: map[service.Name]*PodWeight{}, cut: cutPod,
		changed: func(service.Name, *PodWeight, *PodWeight, int64) {
			for user := range w.users {
				s.mark(user, 0)
			}
		},
	}
	return w
}

// podsListed reports whether the first lists of all pods that are asked for are in. s.mu
// is held.
func (s *Source) podsListed() bool {
	for _, w := range s.podWatches {
		if len(w.users) > 0 && !w.pods.listed {
			return false
		}
	}
	return true
}

// weigh gives the slices of a Service their weights. s.mu is held.
func (s *Source) weigh(name service.Name, all []*service.Slice) []*service.Slice {
	r := s.services.all[name]
	if r == nil || r.pods == nil {
		return all
	}
	w := s.podWatches[*r.pods]
	pods := make([]*PodWeight, 0, len(w.pods.all))
	for _, p := range w.pods.all {
		pods = append(pods, p)
	}
	return WithWeights(all, pods)
}

// watchPods starts and stops watches of pods as Services ask for weights.
func (s *Source) watchPods(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.podWake:
		}
		s.mu.Lock()
		for selector, w := range s.podWatches {
			switch {
			case len(w.users) == 0:
				if w.stop != nil {
					w.stop()
				}
				delete(s.podWatches, selector)
			case w.stop == nil:
				var watching context.Context
				watching, w.stop = context.WithCancel(ctx)
				client := podLister{s.cfg.Client.CoreV1().Pods(selector.namespace), func() { s.weightless(w) }}
				r := reflector(s, "pods", &corev1.Pod{}, w.pods, metav1.ListOptions{LabelSelector: selector.labels}, client)
				wg.Go(func() { r.RunWithContext(watching) })
			}
		}
		s.mu.Unlock()
		s.firstList() // who was waited for may be gone
	}
}

// weightless opens the gate although we have no right to read pods: their weights are
// not worth that nothing works.
func (s *Source) weightless(w *podWatch) {
	s.mu.Lock()
	w.pods.listed = true
	s.mu.Unlock()
	s.firstList()
}

// podLister says when the right to read pods is missing.
type podLister struct {
	typedcorev1.PodInterface
	forbidden func()
}

// List is a part of lister.
func (p podLister) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	list, err := p.PodInterface.List(ctx, o)
	if apierrors.IsForbidden(err) {
		p.forbidden()
	}
	return list, err
}

// Watch is a part of lister.
func (p podLister) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := p.PodInterface.Watch(ctx, o)
	if apierrors.IsForbidden(err) {
		p.forbidden()
	}
	return w, err
}
