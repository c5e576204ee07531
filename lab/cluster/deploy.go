package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/manifest"
)

// overlay is what the lab changes in deploy/: where the API server is, the
// cluster's addresses, how Services are proxied, and that Fairway makes the
// pod network as well.
func (b *builder) overlay() string {
	mode := b.ProxyMode
	if b.KubeProxy != "" {
		mode = "none" // the agent makes the pod network, kube-proxy the Services
	}
	policy := "SingleStack"
	if b.Family == fabric.Dual {
		policy = "RequireDualStack"
	}
	dns := b.plan.DNS()
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
- target: {kind: DaemonSet, name: fairway-agent}
  patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: fairway-agent}
    spec:
      template:
        spec:
          volumes:
          - name: modules # one kernel for all nodes: agents must not load what it lacks
            hostPath: null
            emptyDir: {}
- target: {kind: Service, name: kube-dns}
  patch: |
    apiVersion: v1
    kind: Service
    metadata: {name: kube-dns}
    spec:
      ipFamilyPolicy: %s
      clusterIP: %q
      clusterIPs: [%s]
`, b.plan.APIServer(), list(b.plan.Pods()), mode, policy, dns[0], quoted(dns))
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
