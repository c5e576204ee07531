package install

import (
	"context"
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

func serviceRef(namespace, name string) objects.Ref {
	return objects.Ref{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name}
}

// served returns the Services with something to lose by a restart: kube-dns if it has a ready endpoint, and the Services
// that a node announces.
func (i *Installer) served(ctx context.Context) (now []objects.Ref, err error) {
	all, err := list[discoveryv1.EndpointSlice](ctx, i.API, "discovery.k8s.io/v1", "EndpointSlice", kubeSystem, discoveryv1.LabelServiceName+"=kube-dns")
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }) {
			now = append(now, serviceRef(kubeSystem, "kube-dns"))
		}
	}
	for _, kind := range []string{"ServiceL2Status", "ServiceBGPStatus"} {
		all, err := i.API.List(ctx, "metallb.io/v1beta1", kind, "", "")
		if err != nil {
			return nil, err
		}
		for _, o := range all {
			name, _, _ := unstructured.NestedString(o.Object, "status", "serviceName")
			namespace, _, _ := unstructured.NestedString(o.Object, "status", "serviceNamespace")
			if ref := serviceRef(namespace, name); !slices.Contains(now, ref) {
				now = append(now, ref)
			}
		}
	}
	return now, nil
}

// waitServed waits until the Services that were served before a change, and that still exist, are served again.
func (i *Installer) waitServed(ctx context.Context, before []objects.Ref) error {
	var missing []string
	err := i.until(ctx, func(ctx context.Context) (bool, error) {
		now, err := i.served(ctx)
		if err != nil {
			return false, err
		}
		missing = nil
		for _, ref := range before {
			if slices.Contains(now, ref) {
				continue
			}
			if o, err := i.API.Get(ctx, ref); err != nil || o != nil {
				missing = append(missing, ref.String())
			}
		}
		return len(missing) == 0, nil
	})
	if err != nil && len(missing) > 0 {
		return fmt.Errorf("no longer served%s: %w", some(missing), err)
	}
	return err
}
