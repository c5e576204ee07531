package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/manifest"
)

// overlay returns the lab's kustomization of deploy/. It selects the components for the mode and the pod network, and
// sets the addresses of the API server and the cluster.
func (b *builder) overlay() string {
	mode := b.ProxyMode
	if b.KubeProxy != "" {
		mode = datapath.None // kube-proxy carries Services, and the agent does its other tasks
	}
	components, podNetwork := []string{"deploy/components/pod-network"}, b.PodNetwork
	if b.PodNetwork == podNetworkBridge {
		components, podNetwork = nil, "none"
	}
	if b.PodNetwork == "wireguard" { // needs a kernel with WireGuard
		components = append(components, "deploy/components/wireguard")
	}
	if mode != datapath.None && mode != datapath.NFTables { // the base already uses nftables
		components = append(components, "deploy/components/"+mode)
	}
	if b.EgressAddresses {
		components = append(components, "deploy/components/egress")
	}
	if b.NetworkPolicy {
		components = append(components, "deploy/components/network-policy")
	}
	if b.Gateway { // the controller, which comes with the load balancer, reads the setting
		components = append(components, "deploy/components/gateway")
	}
	return overlayOf("deploy", strings.Join(append(components, "deploy/image"), ", "), "ConfigMap", "fairway-agent", fmt.Sprintf(`data:
  FAIRWAY_API_SERVER: %q
  CLUSTER_CIDR: %q
  PROXY_MODE: %q
  POD_NETWORK: %q
`, b.plan.APIServer(), list(b.plan.Pods()), mode, podNetwork))
}

// overlayOf returns a kustomization that changes one object. patch holds the changed fields.
func overlayOf(resource, components, kind, name, patch string) string {
	return fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
components: [%s]
patches:
- target: {kind: %s, name: %s}
  patch: |
    apiVersion: v1
    kind: %[3]s
    metadata: {name: %[4]s}
    %s
`, resource, components, kind, name, strings.ReplaceAll(strings.TrimSpace(patch), "\n", "\n    "))
}

// dnsOverlay gives the DNS Service the cluster's DNS address. It is a separate overlay, as for users whose cluster has
// no DNS.
func (b *builder) dnsOverlay() string {
	policy := "SingleStack"
	if b.Family == fabric.Dual {
		policy = "RequireDualStack"
	}
	dns := b.plan.DNS()
	return overlayOf("deploy/dns-service", "", "Service", "kube-dns", fmt.Sprintf(`spec:
  ipFamilyPolicy: %s
  clusterIP: %q
  clusterIPs: [%s]
`, policy, dns[0], quoted(dns)))
}

// imageComponent returns the component that names the image, which "make image" wrote next to the archive. It is empty
// if the lab has no image archive.
func (b *builder) imageComponent() (string, error) {
	if b.Image == "" {
		return "", nil
	}
	text, err := os.ReadFile(imageComponentFile(b.Image))
	if err != nil {
		return "", fmt.Errorf("find the name of the image: %w [make image writes it]", err)
	}
	return string(text), nil
}

func list(prefixes []netip.Prefix) string {
	s := make([]string, len(prefixes))
	for i, p := range prefixes {
		s[i] = p.String()
	}
	return strings.Join(s, ",")
}

func quoted(addrs []netip.Addr) string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = fmt.Sprintf("%q", a)
	}
	return strings.Join(s, ", ")
}

// deployAll builds the objects while the API server starts, and then applies them to the cluster. DNS waits until every
// node is registered, because the scheduler spreads its pods over the nodes that it knows.
func (b *builder) deployAll(ctx context.Context) error {
	var objects, dns []*unstructured.Unstructured
	if b.Deploy != "" {
		var err error
		if objects, err = b.manifests("overlay", b.overlay()); err != nil {
			return err
		}
		if dns, err = b.manifests("overlay-dns", b.dnsOverlay()); err != nil {
			return err
		}
	}
	if err := b.waitAPI(ctx); err != nil || b.Deploy == "" {
		return err
	}
	config, _, err := b.client()
	if err != nil {
		return err
	}
	if err := manifest.Apply(ctx, config, objects); err != nil {
		return err
	}
	if err := b.waitRegistered(ctx); err != nil {
		return err
	}
	if err := manifest.Apply(ctx, config, dns); err != nil {
		return err
	}
	b.Done("fairway deployed")
	return nil
}

// manifests writes an overlay and returns the objects that it builds, with the lab's image.
func (b *builder) manifests(dir, overlay string) ([]*unstructured.Unstructured, error) {
	component, err := b.imageComponent()
	if err != nil {
		return nil, err
	}
	return manifest.Build(b.path(dir), b.Deploy, overlay, component)
}

// apply builds an overlay and applies its objects to the cluster.
func (b *builder) apply(ctx context.Context, dir, overlay string) error {
	config, _, err := b.client()
	if err != nil {
		return err
	}
	objects, err := b.manifests(dir, overlay)
	if err != nil {
		return err
	}
	return manifest.Apply(ctx, config, objects)
}
