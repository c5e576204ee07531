package install

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/kube/objects"
)

// Uninstall hands back Services and DNS, removes all objects, and cleans each node.
func (i *Installer) Uninstall(ctx context.Context) error {
	inv, err := loadInventory(ctx, i.API)
	if err != nil {
		return err
	}
	r := inv.current()
	if r == nil {
		return errors.New("fairway install has not been here [what kubectl apply -k has made: kubectl delete -k, then deploy/cleanup: deploy/README.md]")
	}
	facts, err := i.detect(ctx)
	if err != nil {
		return err
	}
	lost, err := i.lossOf(ctx, inv, facts, Settings{})
	if err != nil {
		return err
	}
	refs := inv.gone(nil)
	if err := i.showRemoval(ctx, inv, refs); err != nil {
		return err
	}
	if err := i.refuseLosses(lost); err != nil {
		return err
	}
	if i.DryRun {
		i.say("\ndry run: nothing was changed")
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, i.Timeout, fmt.Errorf("not done after %s", i.Timeout))
	defer cancel()
	if err := i.remove(ctx, inv, r, refs); err != nil {
		return fmt.Errorf("uninstall: %w [correct it, and run fairway uninstall again]", err)
	}
	left, err := i.left(ctx)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		i.say("\ndone: what fairway install made is removed. Left, because something else made it%s [kubectl delete removes it, then deploy/cleanup cleans the nodes]", some(left))
		return nil
	}
	i.say("\ndone: nothing of Fairway runs, and nothing is left on the nodes")
	return nil
}

// left names the workloads of Fairway that still exist.
func (i *Installer) left(ctx context.Context) (names []string, err error) {
	for _, ref := range fairwayWorkloads {
		o, err := i.API.Get(ctx, ref)
		if err != nil {
			return nil, err
		}
		if o != nil {
			names = append(names, ref.String())
		}
	}
	return names, nil
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
