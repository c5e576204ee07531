package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/oneline"
)

// fewPods are enough to see whether pods have a second address; manyPods are as many as
// one request should ask for.
const fewPods, manyPods = 20, 500

// Alive reports whether the namespace has a pod with that address whose containers have
// not ended. It asks the API server.
//
// The API server finds pods by the first address only. A second one, in a cluster of
// both families, is looked for in all pods of the namespace.
func Alive(ctx context.Context, client kubernetes.Interface, namespace string, addr netip.Addr) (bool, error) {
	pods := client.CoreV1().Pods(namespace)
	fail := func(err error) (bool, error) {
		return false, fmt.Errorf("ask for pods with address %v in namespace %s: %w", addr, namespace, oneline.Error(err))
	}
	byFirst, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "status.podIP=" + addr.String()})
	if err != nil {
		return fail(err)
	}
	if slices.ContainsFunc(byFirst.Items, func(p corev1.Pod) bool { return lives(p, addr) }) {
		return true, nil
	}
	options := metav1.ListOptions{Limit: fewPods}
	for {
		page, err := pods.List(ctx, options)
		if err != nil {
			return fail(err)
		}
		single := false
		for _, p := range page.Items {
			if lives(p, addr) {
				return true, nil
			}
			single = single || len(p.Status.PodIPs) == 1
		}
		// Where pods have one address, it would have been found.
		if options.Continue = page.Continue; options.Continue == "" || single {
			return false, nil
		}
		options.Limit = manyPods
	}
}

// lives reports whether a pod has the address and still needs it.
func lives(p corev1.Pod, addr netip.Addr) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool {
		a, err := parseAddr(ip.IP)
		return err == nil && a == addr
	})
}
