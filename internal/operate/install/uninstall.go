package install

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/kube/objects"
)

// Uninstall hands back Services and DNS, removes all objects, and cleans each node. force accepts that pods lose their
// network.
func (i *Installer) Uninstall(ctx context.Context, force bool) error {
	inv, err := loadInventory(ctx, i.API)
	if err != nil {
		return err
	}
	r := inv.current()
	if r == nil {
		return errors.New("fairway install has not been here [what kubectl apply -k has made: kubectl delete -k, then deploy/cleanup: deploy/README.md]")
	}
	if err := i.needPods(ctx, r, force); err != nil {
		return err
	}
	refs := inv.gone(nil)
	if err := i.showRemoval(ctx, inv, refs); err != nil || i.DryRun {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, i.Timeout, fmt.Errorf("not done after %s", i.Timeout))
	defer cancel()
	if err := i.remove(ctx, inv, r, refs); err != nil {
		return fmt.Errorf("uninstall: %w [correct it, and run fairway uninstall again]", err)
	}
	i.say("\ndone: nothing of Fairway runs, and nothing is left on the nodes")
	return nil
}

// needPods refuses to remove the network of running pods, unless force.
func (i *Installer) needPods(ctx context.Context, r *revision, force bool) error {
	if force || !connectsPods(r.Settings.Values) {
		return nil
	}
	pods, err := list[corev1.Pod](ctx, i.API, "v1", "Pod", "", "")
	if err != nil {
		return err
	}
	ours := inventoryPods(r)
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool {
		return p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || ours(p)
	})
	if len(pods) == 0 {
		return nil
	}
	return fmt.Errorf("refused: %d pods, %s/%s first, use Fairway's pod network: without its plugin they run on, but cannot be deleted, and new ones do not start [install another CNI plugin and delete them, or --force]",
		len(pods), pods[0].Namespace, pods[0].Name)
}

// inventoryPods returns a function that reports whether a pod belongs to the revision's workloads.
func inventoryPods(r *revision) func(corev1.Pod) bool {
	var selectors []map[string]string
	for _, o := range workloads(r.objects) {
		labels, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels")
		selectors = append(selectors, labels)
	}
	return func(p corev1.Pod) bool {
		return p.Namespace == kubeSystem && slices.ContainsFunc(selectors, func(labels map[string]string) bool {
			for key, value := range labels {
				if p.Labels[key] != value {
					return false
				}
			}
			return len(labels) > 0
		})
	}
}

func (i *Installer) showRemoval(ctx context.Context, inv *inventory, refs []objects.Ref) error {
	p, err := planOf(ctx, i.API, nil, refs)
	if err != nil {
		return err
	}
	others, err := i.handovers(ctx, inv, &revision{})
	if err != nil {
		return err
	}
	p.write(i.Out)
	for _, h := range others {
		i.say("  %-6s  %s", change, h)
	}
	for _, r := range inv.all() {
		if slices.Contains(kept, r.Kind) {
			i.say("  %-6s  %s, and what others have made in it", "keep", r)
		}
	}
	held, err := i.heldServices(ctx)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		i.say("  %-6s  finalizer %s of Services: %d; their addresses stay", remove, loadbalancer.BalancerFinalizer, len(held))
	}
	i.say("  %-6s  rules, routes and files of Fairway on each node", remove)
	if i.DryRun {
		i.say("\ndry run: nothing was changed")
	}
	return nil
}

// remove gives Services back to kube-proxy while agents still follow the cluster. Then it stops the agents, which leave
// their rules, and removes the rules after kube-proxy has written its own.
func (i *Installer) remove(ctx context.Context, inv *inventory, r *revision, refs []objects.Ref) error {
	if err := i.giveBackDNS(ctx, inv, Settings{}); err != nil {
		return err
	}
	if err := i.release(ctx, inv, r); err != nil {
		return err
	}
	if err := i.giveBackProxy(ctx, inv, false); err != nil {
		return err
	}
	for _, ref := range refs {
		if err := i.API.Delete(ctx, ref); err != nil {
			return err
		}
	}
	if err := i.waitGone(ctx, r.objects); err != nil {
		return err
	}
	if err := i.letGo(ctx); err != nil {
		return err
	}
	proxy, err := read[appsv1.DaemonSet](ctx, i.API, kubeProxyRef.APIVersion, kubeProxyRef.Kind, kubeSystem, kubeProxyRef.Name)
	if err != nil {
		return err
	}
	if err := i.cleanNodes(ctx, r.Settings.Image, proxy != nil && proxy.Status.DesiredNumberScheduled > 0); err != nil {
		return err
	}
	return i.API.Delete(ctx, inventoryRef)
}

// cleanNodes runs deploy/cleanup to its end.
func (i *Installer) cleanNodes(ctx context.Context, image string, afterKubeProxy bool) error {
	cleanup, err := RenderCleanup(i.Manifests, image, afterKubeProxy)
	if err != nil {
		return err
	}
	for _, o := range cleanup {
		if err := i.apply(ctx, o); err != nil {
			return err
		}
	}
	if err := i.waitFor(ctx, cleanup); err != nil {
		return err
	}
	for _, o := range cleanup {
		if err := i.API.Delete(ctx, objects.RefOf(o)); err != nil {
			return err
		}
	}
	return i.waitGone(ctx, cleanup)
}

func one(o *unstructured.Unstructured) []*unstructured.Unstructured {
	return []*unstructured.Unstructured{o}
}
