package path

import (
	"bytes"
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/text"
)

// Objects are the objects of a cluster that decide about packets.
type Objects struct {
	Services        []corev1.Service
	Slices          []discoveryv1.EndpointSlice
	Pods            []corev1.Pod
	Nodes           []corev1.Node
	Namespaces      []corev1.Namespace
	Policies        []networkingv1.NetworkPolicy
	ClusterPolicies []unstructured.Unstructured
	Ranges          []networkingv1.ServiceCIDR
}

// pageSize bounds the objects of one answer of the API server.
const pageSize = 2000

// Read lists the objects of a cluster once. custom may be nil.
func Read(ctx context.Context, client kubernetes.Interface, custom dynamic.Interface) (*Objects, error) {
	o := &Objects{}
	for _, kind := range []struct {
		name string
		list func(metav1.ListOptions) (next string, err error)
	}{
		{"services", pages(ctx, client.CoreV1().Services("").List, func(l *corev1.ServiceList) { o.Services = append(o.Services, l.Items...) })},
		{"endpointslices", pages(ctx, client.DiscoveryV1().EndpointSlices("").List, func(l *discoveryv1.EndpointSliceList) { o.Slices = append(o.Slices, l.Items...) })},
		{"pods", pages(ctx, client.CoreV1().Pods("").List, func(l *corev1.PodList) { o.Pods = append(o.Pods, l.Items...) })},
		{"nodes", pages(ctx, client.CoreV1().Nodes().List, func(l *corev1.NodeList) { o.Nodes = append(o.Nodes, l.Items...) })},
		{"namespaces", pages(ctx, client.CoreV1().Namespaces().List, func(l *corev1.NamespaceList) { o.Namespaces = append(o.Namespaces, l.Items...) })},
		{"networkpolicies", pages(ctx, client.NetworkingV1().NetworkPolicies("").List, func(l *networkingv1.NetworkPolicyList) { o.Policies = append(o.Policies, l.Items...) })},
	} {
		if err := eachPage(kind.list); err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.name, text.RequestError(err))
		}
	}
	ranges, err := client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err == nil { // older API servers do not have the kind, and some users may not read it
		o.Ranges = ranges.Items
	}
	if custom == nil {
		return o, nil
	}
	wide, err := custom.Resource(kube.ClusterNetworkPolicies).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", kube.ClusterNetworkPolicies.Resource, text.RequestError(err))
	default:
		o.ClusterPolicies = wide.Items
	}
	return o, nil
}

// pages adapts the List function of a kind.
func pages[L metav1.ListInterface](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), add func(L)) func(metav1.ListOptions) (string, error) {
	return func(options metav1.ListOptions) (string, error) {
		l, err := list(ctx, options)
		if err != nil {
			return "", err
		}
		add(l)
		return l.GetContinue(), nil
	}
}

// maxManifests bounds the bytes of manifests.
const maxManifests = 512 << 20

// Parse adds the objects of manifests: YAML or JSON, also the List that `kubectl get -o yaml` writes. Objects of other kinds are left
// out. Objects without a namespace are in namespace.
func (o *Objects) Parse(r io.Reader, namespace string) error {
	docs := yaml.NewYAMLOrJSONDecoder(io.LimitReader(r, maxManifests), 4096)
	for n := 1; ; n++ {
		var raw map[string]any
		switch err := docs.Decode(&raw); {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("object %d: %w", n, text.OneLine(err))
		}
		if err := o.add(raw, namespace); err != nil {
			return fmt.Errorf("object %d: %w", n, text.OneLine(err))
		}
	}
}

func (o *Objects) add(raw map[string]any, namespace string) error {
	if items, ok := raw["items"].([]any); ok {
		for _, i := range items {
			one, _ := i.(map[string]any)
			if err := o.add(one, namespace); err != nil {
				return err
			}
		}
		return nil
	}
	kind, _ := raw["kind"].(string)
	switch kind {
	case "Service":
		return one(raw, &o.Services, func(x *corev1.Service) { home(&x.ObjectMeta, namespace) })
	case "EndpointSlice":
		return one(raw, &o.Slices, func(x *discoveryv1.EndpointSlice) { home(&x.ObjectMeta, namespace) })
	case "Pod":
		return one(raw, &o.Pods, func(x *corev1.Pod) { home(&x.ObjectMeta, namespace) })
	case "Node":
		return one(raw, &o.Nodes, func(*corev1.Node) {})
	case "Namespace":
		return one(raw, &o.Namespaces, func(*corev1.Namespace) {})
	case "NetworkPolicy":
		return one(raw, &o.Policies, func(x *networkingv1.NetworkPolicy) { home(&x.ObjectMeta, namespace) })
	case "ServiceCIDR":
		return one(raw, &o.Ranges, func(*networkingv1.ServiceCIDR) {})
	case "ClusterNetworkPolicy":
		o.ClusterPolicies = append(o.ClusterPolicies, unstructured.Unstructured{Object: raw})
	}
	return nil
}

// one converts an object and appends it.
func one[T any](raw map[string]any, all *[]T, then func(*T)) error {
	data, err := sigsyaml.Marshal(raw)
	if err != nil {
		return err
	}
	var x T
	if err := sigsyaml.Unmarshal(bytes.TrimSpace(data), &x); err != nil {
		return fmt.Errorf("%v: %w", raw["kind"], err)
	}
	then(&x)
	*all = append(*all, x)
	return nil
}

func home(m *metav1.ObjectMeta, namespace string) {
	if m.Namespace == "" {
		m.Namespace = namespace
	}
}
