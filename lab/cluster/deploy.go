package cluster

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/lab/manifest"
)

// overlay is what the lab changes in deploy/: where the API server is, the
// cluster's addresses, and how Services are proxied.
func (b *builder) overlay() string {
	mode := b.ProxyMode
	if b.KubeProxy != "" {
		mode = "none" // the agent makes the pod network, kube-proxy the Services
	}
	var pods []string
	for _, p := range b.plan.Pods() {
		pods = append(pods, p.String())
	}
	return fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [base]
patches:
- target: {kind: ConfigMap, name: fairway-agent}
  patch: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: fairway-agent}
    data:
      FAIRWAY_API_SERVER: %q
      CLUSTER_CIDR: %q
      PROXY_MODE: %q
      POD_NETWORK: routes
`, b.plan.APIServer(), strings.Join(pods, ","), mode)
}

func (b *builder) deployAll(ctx context.Context) error {
	if b.Deploy == "" {
		return nil
	}
	config, _, err := b.client()
	if err != nil {
		return err
	}
	objects, err := manifest.Build(b.path("overlay"), b.Deploy, b.overlay())
	if err != nil {
		return err
	}
	if err := manifest.Apply(ctx, config, objects); err != nil {
		return err
	}
	b.Done("fairway deployed")
	return nil
}
