package cluster

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/lab/controlplane"
	"github.com/fairway-net/fairway/lab/manifest"
	"github.com/fairway-net/fairway/lab/pki"
)

// metricsSubject returns the subject of the metrics server's certificate. kube-apiserver verifies the name of its
// Service, and kubelets accept its group.
func metricsSubject() pki.Subject {
	return pki.Subject{Name: "lab:metrics-server", Groups: []string{"system:masters"}, Names: []string{"metrics-server.kube-system.svc"}}
}

// metricsObjects register the server of metrics.k8s.io at kube-apiserver: a Service in front of the control plane's own
// process.
const metricsObjects = `
- apiVersion: v1
  kind: Service
  metadata: {name: metrics-server, namespace: kube-system}
  spec: {ports: [{name: https, port: 443, targetPort: %[1]d}]}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: metrics-server, namespace: kube-system, labels: {kubernetes.io/service-name: metrics-server}}
  addressType: %[2]s
  ports: [{name: https, port: %[1]d, protocol: TCP}]
  endpoints: [{addresses: [%[3]q], conditions: {ready: true}}]
- apiVersion: apiregistration.k8s.io/v1
  kind: APIService
  metadata: {name: v1beta1.metrics.k8s.io}
  spec:
    group: metrics.k8s.io
    version: v1beta1
    groupPriorityMinimum: 100
    versionPriority: 100
    caBundle: %[4]s
    service: {name: metrics-server, namespace: kube-system, port: 443}
`

// registerMetrics makes kube-apiserver forward requests for metrics.k8s.io to the lab's metrics server.
func (b *builder) registerMetrics(ctx context.Context) error {
	if !b.MetricsServer {
		return nil
	}
	ca, err := os.ReadFile(filepath.Join(b.pki(), "ca.crt"))
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	addr, family := b.plan.ControlPlane()[0].Addr(), "IPv4"
	if addr.Is6() {
		family = "IPv6"
	}
	text := fmt.Sprintf(metricsObjects, controlplane.MetricsPort, family, addr, base64.StdEncoding.EncodeToString(ca))
	var items []map[string]any
	if err := yaml.Unmarshal([]byte(text), &items); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	objects := make([]*unstructured.Unstructured, len(items))
	for i, item := range items {
		objects[i] = &unstructured.Unstructured{Object: item}
	}
	config, _, err := b.client()
	if err != nil {
		return err
	}
	return manifest.Apply(ctx, config, objects)
}
