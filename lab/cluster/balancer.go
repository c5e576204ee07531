package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/manifest"
)

// balancerDir is the directory of the load balancer's overlay. The lab applies this overlay separately, after DNS
// answers, because no other part of the cluster waits for it.
const balancerDir = "overlay-load-balancer"

// balancerComponents maps each load balancer to the component of deploy/ that gives addresses. BalancerNone has no
// entry.
var balancerComponents = map[string]string{
	BalancerL2:        "load-balancer",
	BalancerBGP:       "load-balancer",
	BalancerServiceLB: "servicelb",
	BalancerEdge:      "edge",
}

// balancerOverlay returns the kustomization that installs the load balancer. It is empty for BalancerNone.
func (o Options) balancerOverlay() string {
	component := balancerComponents[o.LoadBalancer]
	if component == "" {
		return ""
	}
	return fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
components: [deploy/components/%s, deploy/image]
`, component)
}

// deployBalancer installs the load balancer and makes the lab's pool.
func (b *builder) deployBalancer(ctx context.Context) error {
	overlay := b.balancerOverlay()
	if overlay == "" || b.Deploy == "" {
		return nil
	}
	if err := b.apply(ctx, balancerDir, overlay); err != nil {
		return err
	}
	if err := b.makePool(ctx); err != nil {
		return err
	}
	if b.front() == fabric.Edge {
		if err := b.startEdge(); err != nil {
			return err
		}
	}
	b.Done("load balancer deployed (%s)", b.LoadBalancer)
	return nil
}

// redeployBalancer applies the load balancer's overlay again, with the user's edits and the current manifests.
func (b *builder) redeployBalancer(ctx context.Context) error {
	overlay, err := b.kept(balancerDir, b.balancerOverlay())
	if err != nil || overlay == "" {
		return err
	}
	if err := b.apply(ctx, balancerDir, overlay); err != nil || b.front() != fabric.Edge {
		return err
	}
	if err := b.state.process(fabric.Edge).Kill(); err != nil {
		return err
	}
	return b.startEdge()
}

// kept returns the overlay that the lab's directory holds, with the user's edits. Without a file there it returns
// overlay.
func (l Lab) kept(dir, overlay string) (string, error) {
	text, err := os.ReadFile(l.path(dir, "kustomization.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return overlay, nil
	}
	if err != nil {
		return "", fmt.Errorf("read overlay: %w", err)
	}
	return string(text), nil
}

// makePool makes the lab's address pool and the objects that let speakers announce it. It retries until the
// CustomResourceDefinitions exist.
func (b *builder) makePool(ctx context.Context) error {
	if b.LoadBalancer == BalancerServiceLB {
		return nil
	}
	config, _, err := b.client()
	if err != nil {
		return err
	}
	var addresses []any
	for _, r := range b.plan.LoadBalancers() {
		addresses = append(addresses, r)
	}
	objects := []*unstructured.Unstructured{metallb("lab", "v1beta1", "IPAddressPool", map[string]any{"addresses": addresses})}
	pools := map[string]any{"ipAddressPools": []any{"lab"}}
	switch b.LoadBalancer {
	case BalancerL2:
		if b.plan.TwoSubnets { // the pool's addresses belong to the first subnet
			pools["nodeSelectors"] = []any{map[string]any{"matchLabels": map[string]any{subnetLabel: "1"}}}
		}
		objects = append(objects, metallb("lab", "v1beta1", "L2Advertisement", pools))
	case BalancerBGP:
		objects = append(objects, metallb("lab", "v1beta1", "BGPAdvertisement", pools))
	}
	if b.routerIn() != "" {
		objects = append(objects, b.routerPeers()...)
	}
	err = apiclient.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		return manifest.Apply(ctx, config, objects)
	})
	if err != nil {
		return fmt.Errorf("make the pool of load-balancer addresses: %w", err)
	}
	return nil
}

// routerPeers returns the BGPPeer objects for the lab's router, one for each family and subnet. If the router carries
// the pods' packets, both sides also use BFD.
func (b *builder) routerPeers() (peers []*unstructured.Unstructured) {
	for _, at := range b.routerAddrs() {
		name := "router"
		if at.addr.Addr().Is6() {
			name = "router-ipv6"
		}
		spec := map[string]any{
			"myASN": int64(nodeASN), "peerASN": int64(routerASN), "peerAddress": at.addr.Addr().String(),
			"holdTime": fmt.Sprintf("%ds", holdTime), "keepaliveTime": fmt.Sprintf("%ds", holdTime/3),
		}
		if b.PodNetwork == podNetworkBGP {
			spec["bfdProfile"] = "lab"
		}
		if b.plan.TwoSubnets {
			name = fmt.Sprintf("%s-%d", name, at.subnet)
			spec["nodeSelectors"] = []any{map[string]any{"matchLabels": map[string]any{subnetLabel: fmt.Sprint(at.subnet)}}}
		}
		peers = append(peers, metallb(name, "v1beta2", "BGPPeer", spec))
	}
	if b.PodNetwork == podNetworkBGP {
		peers = append(peers, metallb("lab", "v1beta1", "BFDProfile", map[string]any{
			"receiveInterval": int64(300), "transmitInterval": int64(300), "detectMultiplier": int64(3),
		}))
	}
	return peers
}

// metallb returns an object of metallb.io.
func metallb(name, version, kind string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/" + version, "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": "metallb-system"},
		"spec":     spec,
	}}
}
