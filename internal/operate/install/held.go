package install

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/kube/objects"
)

// givesAddresses reports whether a revision has the controller that puts finalizers on Services.
func givesAddresses(s Settings) bool {
	return slices.Contains(s.Components, "load-balancer") || slices.Contains(s.Components, "edge")
}

// hasController reports whether a component brings the controller.
func hasController(s Settings) bool {
	return slices.Contains(s.Components, "controller") || slices.Contains(s.Components, "servicelb") || givesAddresses(s)
}

// balances reports whether the controller puts finalizers on Services.
func balances(controller *unstructured.Unstructured) bool {
	containers, _, _ := unstructured.NestedSlice(controller.Object, "spec", "template", "spec", "containers")
	return strings.Contains(fmt.Sprint(containers), "--load-balancer=pools") || strings.Contains(fmt.Sprint(containers), "--load-balancer=edge")
}

// heldServices returns the Services with the controller's finalizer. Without the controller they could not be deleted.
func (i *Installer) heldServices(ctx context.Context) (held []unstructured.Unstructured, err error) {
	all, err := i.API.List(ctx, "v1", "Service", "", "")
	for _, o := range all {
		if loadbalancer.HeldByBalancer(&o) {
			held = append(held, o)
		}
	}
	return held, err
}

// letGo removes the controller's finalizer from Services, unless a controller exists. The Services' addresses stay in
// their statuses.
func (i *Installer) letGo(ctx context.Context) error {
	controller, err := i.API.Get(ctx, workload("Deployment", "fairway-controller"))
	if err != nil || controller != nil && balances(controller) {
		return err
	}
	held, err := i.heldServices(ctx)
	if err != nil {
		return err
	}
	for _, o := range held {
		rest := slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == loadbalancer.BalancerFinalizer })
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": o.GetResourceVersion(), // others may have changed the list
			"finalizers":      slices.Concat([]string{}, rest),
		}})
		if err != nil {
			return fmt.Errorf("encode a change of %s: %w", objects.RefOf(&o), err)
		}
		if err := i.API.Patch(ctx, objects.RefOf(&o), patch); err != nil {
			return err
		}
	}
	if len(held) > 0 {
		i.say("%d Services of type LoadBalancer can be deleted: their finalizer is removed", len(held))
	}
	return nil
}

// named returns the objects of all revisions that refs names.
func (inv *inventory) named(refs []objects.Ref) (all []*unstructured.Unstructured) {
	for _, ref := range refs {
		for _, r := range slices.Backward(inv.Revisions) {
			if at := slices.IndexFunc(r.objects, func(o *unstructured.Unstructured) bool { return ref.Same(objects.RefOf(o)) }); at >= 0 {
				all = append(all, r.objects[at])
				break
			}
		}
	}
	return all
}
