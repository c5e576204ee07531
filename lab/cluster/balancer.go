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

// balancerDir is where the overlay with what gives load-balancer addresses is. It is an overlay of its own, which is
// applied when DNS answers: nothing of the cluster waits for it.
const balancerDir = "overlay-load-balancer"

// balancerComponents are the components of deploy/ that give addresses; for BalancerNone there is none.
var balancerComponents = map[string]string{
	BalancerL2:        "load-balancer",
	BalancerBGP:       "load-balancer",
	BalancerServiceLB: "servicelb",
	BalancerEdge:      "edge",
}

// balancerOverlay is what gives Services of type LoadBalancer addresses; "": nothing does.
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

// deployBalancer installs what gives addresses, and makes the lab's pool.
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

// redeployBalancer applies that overlay again, as it is now.
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

// kept is the overlay in a directory of the lab, edited or not; overlay: if there is none.
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

// makePool makes the pool of the lab, and has its addresses announced by speakers, as a user would once the
// CustomResourceDefinitions are there.
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
		if b.plan.TwoSubnets { // the pool's is the first
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

// routerPeers are the lab's router as the nodes see it, once in each family and subnet. Where it carries pods'
// packets, BFD watches it, and it the nodes.
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

// metallb is an object of metallb.io.
func metallb(name, version, kind string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metallb.io/" + version, "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": "metallb-system"},
		"spec":     spec,
	}}
}
