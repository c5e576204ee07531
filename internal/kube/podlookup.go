package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/fairway-net/fairway/internal/text"
)

// A PodLookup asks the API server about single pods. Any goroutine may use it.
type PodLookup struct{ Client kubernetes.Interface }

const (
	// fewPods is enough to see whether pods have a second address. manyPods is the largest page of one request.
	fewPods, manyPods = 20, 500
	// maxPages bounds the pages of one lookup.
	maxPages = 8
	// fromCache lets the API server answer from its watch cache, without etcd. The answer may be slightly old.
	fromCache = "0"
)

// Pod reports whether the namespace has a running pod with this name and address, and whether the pod is being deleted.
// An empty name stands for any pod. A pod whose containers have ended does not count.
//
// A lookup by name costs one object from the API server's watch cache. The comparison of addresses detects a later pod
// with an equal name (of a StatefulSet).
func (l PodLookup) Pod(ctx context.Context, namespace, name string, addr netip.Addr) (exists, terminating bool, err error) {
	pods := l.Client.CoreV1().Pods(namespace)
	var found *corev1.Pod
	if name != "" {
		found, err = podOfName(ctx, pods, name, addr)
	} else {
		found, err = podOfAddr(ctx, pods, addr)
	}
	if err != nil {
		if apierrors.IsForbidden(err) {
			err = deniedError{err}
		}
		return false, false, fmt.Errorf("look for pod %q with address %v in namespace %s: %w", name, addr, namespace, text.RequestError(err))
	}
	return found != nil, found != nil && found.DeletionTimestamp != nil, nil
}

// deniedError says that we have no right to read pods.
type deniedError struct{ error }

// Denied tells package flow not to ask again.
func (deniedError) Denied() bool { return true }

func podOfName(ctx context.Context, pods typedcorev1.PodInterface, name string, addr netip.Addr) (*corev1.Pod, error) {
	p, err := pods.Get(ctx, name, metav1.GetOptions{ResourceVersion: fromCache})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil || !isRunning(p, addr) {
		return nil, err
	}
	return p, nil
}

// podOfAddr finds a pod by its address.
//
// The API server can search for a pod's first address only. In a dual-stack cluster, podOfAddr looks for a second
// address in the first few thousand pods of the namespace.
func podOfAddr(ctx context.Context, pods typedcorev1.PodInterface, addr netip.Addr) (*corev1.Pod, error) {
	first := func(all []corev1.Pod) *corev1.Pod {
		if i := slices.IndexFunc(all, func(p corev1.Pod) bool { return isRunning(&p, addr) }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	byFirst, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "status.podIP=" + addr.String(), ResourceVersion: fromCache})
	if err != nil {
		return nil, err
	}
	if p := first(byFirst.Items); p != nil {
		return p, nil
	}
	options := metav1.ListOptions{Limit: fewPods}
	for range maxPages {
		page, err := pods.List(ctx, options)
		if err != nil {
			return nil, err
		}
		if p := first(page.Items); p != nil {
			return p, nil
		}
		// Pods with a single address were found by the first request.
		single := slices.ContainsFunc(page.Items, func(p corev1.Pod) bool { return len(p.Status.PodIPs) == 1 })
		if options.Continue = page.Continue; options.Continue == "" || single {
			return nil, nil
		}
		options.Limit = manyPods
	}
	return nil, fmt.Errorf("the namespace has more than %d pods", fewPods+(maxPages-1)*manyPods)
}

// isRunning reports whether a pod has the address and still needs it.
func isRunning(p *corev1.Pod, addr netip.Addr) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool {
		a, err := ParseAddr(ip.IP)
		return err == nil && a == addr
	})
}
