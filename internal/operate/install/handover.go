package install

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// The workloads that are handed over: the DaemonSet kube-proxy and the Deployment coredns, as kubeadm, kind and others
// make them. Neither is deleted. Each is set to run no pods.
var (
	kubeProxyRef = objects.Ref{APIVersion: "apps/v1", Kind: "DaemonSet", Namespace: kubeSystem, Name: "kube-proxy"}
	coreDNSRef   = objects.Ref{APIVersion: "apps/v1", Kind: "Deployment", Namespace: kubeSystem, Name: "coredns"}
)

// parked is a node label that no node has. deploy/README.md uses it too.
const parked = "fairway.net/kube-proxy"

const (
	parkProxy   = `{"spec":{"template":{"spec":{"nodeSelector":{"` + parked + `":"back"}}}}}`
	unparkProxy = `{"spec":{"template":{"spec":{"nodeSelector":{"` + parked + `":null}}}}}`
)

// handovers lists the changes of a revision to other programs.
func (i *Installer) handovers(ctx context.Context, inv *inventory, r *revision) (lines []string, err error) {
	takes := r.Settings.Values[keyReplace] == yes
	proxy, err := read[appsv1.DaemonSet](ctx, i.API, kubeProxyRef.APIVersion, kubeProxyRef.Kind, kubeSystem, kubeProxyRef.Name)
	if err != nil {
		return nil, err
	}
	switch is := proxy != nil && isParked(proxy); {
	case takes && proxy != nil && !is:
		lines = append(lines, kubeProxyRef.String()+": ended when Fairway's rules carry Services (nodeSelector "+parked+")")
	case !takes && inv.KubeProxy && is:
		lines = append(lines, kubeProxyRef.String()+": started again (nodeSelector)")
	}
	dns, err := read[appsv1.Deployment](ctx, i.API, coreDNSRef.APIVersion, coreDNSRef.Kind, kubeSystem, coreDNSRef.Name)
	if err != nil {
		return nil, err
	}
	switch n := replicas(dns); {
	case r.Settings.DNS && n > 0:
		lines = append(lines, fmt.Sprintf("%s: replicas: %d -> 0, when Fairway's DNS is ready", coreDNSRef, n))
	case !r.Settings.DNS && inv.CoreDNS > 0 && dns != nil:
		lines = append(lines, fmt.Sprintf("%s: replicas: %d -> %d", coreDNSRef, n, inv.CoreDNS))
	}
	return lines, nil
}

func isParked(d *appsv1.DaemonSet) bool {
	_, ok := d.Spec.Template.Spec.NodeSelector[parked]
	return ok
}

// replicas returns a Deployment's replicas, and 0 for nil.
func replicas(d *appsv1.Deployment) int32 {
	switch {
	case d == nil:
		return 0
	case d.Spec.Replicas == nil:
		return 1
	}
	return *d.Spec.Replicas
}

// takeProxy stops kube-proxy and waits for its pods to end. The agents remove its rules.
func (i *Installer) takeProxy(ctx context.Context, inv *inventory, s Settings) error {
	if s.Values[keyReplace] != yes {
		return nil
	}
	o, err := i.API.Get(ctx, kubeProxyRef)
	if err != nil || o == nil {
		return err
	}
	proxy, err := typed[appsv1.DaemonSet](o)
	if err != nil {
		return err
	}
	if !inv.KubeProxy { // also if it is parked, because the inventory may have been lost
		inv.KubeProxy = true
		if err := inv.save(ctx, i.API); err != nil {
			return err
		}
	}
	if !isParked(proxy) {
		if err := i.API.Patch(ctx, kubeProxyRef, []byte(parkProxy)); err != nil {
			return err
		}
	}
	return i.waitGone(ctx, one(o))
}

// release replaces the agents by agents in mode none. These leave kube-proxy's rules alone, and update their own until
// kube-proxy has taken over. It does nothing if we did not stop kube-proxy, or the agents are gone.
func (i *Installer) release(ctx context.Context, inv *inventory, r *revision) error {
	if !inv.KubeProxy {
		return nil
	}
	var agents []*unstructured.Unstructured
	for _, o := range r.objects {
		if o.GetName() == agentName && slices.Contains([]string{"ConfigMap", "DaemonSet"}, o.GetKind()) {
			agents = append(agents, o.DeepCopy())
		}
	}
	for _, o := range agents {
		if have, err := i.API.Get(ctx, objects.RefOf(o)); err != nil || have == nil {
			return err
		}
		if o.GetKind() != "ConfigMap" {
			continue
		}
		for key, value := range map[string]string{keyMode: none, keyReplace: no} {
			if err := unstructured.SetNestedField(o.Object, value, "data", key); err != nil {
				return fmt.Errorf("set %s of %s: %w", key, objects.RefOf(o), err)
			}
		}
	}
	if err := stamp(agents); err != nil {
		return err
	}
	for _, o := range agents {
		if err := i.apply(ctx, o); err != nil {
			return err
		}
	}
	return i.waitFor(ctx, agents)
}

// giveBackProxy starts kube-proxy again if we stopped it, unless stays.
func (i *Installer) giveBackProxy(ctx context.Context, inv *inventory, stays bool) error {
	if stays || !inv.KubeProxy {
		return nil
	}
	o, err := i.API.Get(ctx, kubeProxyRef)
	if err != nil {
		return err
	}
	if o != nil {
		if err := i.API.Patch(ctx, kubeProxyRef, []byte(unparkProxy)); err != nil {
			return err
		}
		if err := i.waitReady(ctx, kubeProxyRef); err != nil {
			return err
		}
	}
	inv.KubeProxy = false
	return inv.save(ctx, i.API)
}

// takeDNS scales coredns to zero once our server answers.
func (i *Installer) takeDNS(ctx context.Context, inv *inventory, s Settings) error {
	if !s.DNS {
		return nil
	}
	dns, err := read[appsv1.Deployment](ctx, i.API, coreDNSRef.APIVersion, coreDNSRef.Kind, kubeSystem, coreDNSRef.Name)
	if err != nil || replicas(dns) == 0 {
		return err
	}
	inv.CoreDNS = replicas(dns)
	if err := inv.save(ctx, i.API); err != nil {
		return err
	}
	i.say("%s: %d -> 0 replicas", coreDNSRef, inv.CoreDNS)
	if err := i.scale(ctx, 0); err != nil {
		return err
	}
	o, err := i.API.Get(ctx, coreDNSRef)
	if err != nil || o == nil {
		return err
	}
	return i.waitGone(ctx, one(o))
}

// giveBackDNS scales coredns up again, waits for its answer, and stops our server. Agents still run, which lead no question
// to a pod that ends. kube-proxy may take longer to notice than the pod answers (lameduck).
func (i *Installer) giveBackDNS(ctx context.Context, inv *inventory, s Settings) error {
	if s.DNS || inv.CoreDNS == 0 {
		return nil
	}
	o, err := i.API.Get(ctx, coreDNSRef)
	if err != nil {
		return err
	}
	if o != nil {
		if err := i.scale(ctx, inv.CoreDNS); err != nil {
			return err
		}
		if err := i.waitReady(ctx, coreDNSRef); err != nil {
			return err
		}
		if err := i.stopDNS(ctx); err != nil {
			return err
		}
	}
	inv.CoreDNS = 0
	return inv.save(ctx, i.API)
}

// stopDNS removes our server and waits for its pods to end.
func (i *Installer) stopDNS(ctx context.Context) error {
	o, err := i.API.Get(ctx, workload("Deployment", "fairway-dns"))
	if err != nil || o == nil {
		return err
	}
	if err := i.API.Delete(ctx, objects.RefOf(o)); err != nil {
		return err
	}
	return i.waitGone(ctx, one(o))
}

func (i *Installer) scale(ctx context.Context, n int32) error {
	return i.API.Patch(ctx, coreDNSRef, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))
}
