package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/image"
	"github.com/fairway-net/fairway/internal/text"
	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/manifest"
	"github.com/fairway-net/fairway/lab/toolbox"
)

// kubeProxyImage is the name of the image that the lab builds from the given kube-proxy program.
const kubeProxyImage = "registry.k8s.io/kube-proxy:lab"

// kubeProxyManifest installs kube-proxy as kubeadm does, except for three settings. The health and metrics ports
// differ, because the agent that makes the pod network uses the usual ones. The conntrack limits stay as they are,
// because they belong to the machine.
const kubeProxyManifest = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-proxy, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-proxier"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-proxier"}
subjects: [{kind: ServiceAccount, name: kube-proxy, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system, labels: {app: kube-proxy}}
data:
  config.conf: |-
    apiVersion: kubeproxy.config.k8s.io/v1alpha1
    kind: KubeProxyConfiguration
    bindAddress: 0.0.0.0
    clientConnection:
      kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
    clusterCIDR: CLUSTER_CIDR
    conntrack:
      maxPerCore: 0
      tcpCloseWaitTimeout: 0s
      tcpEstablishedTimeout: 0s
    healthzBindAddress: 0.0.0.0:10356
    metricsBindAddress: METRICS_ADDRESS
    mode: "MODE"
  kubeconfig.conf: |-
    apiVersion: v1
    kind: Config
    clusters:
    - cluster:
        certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
        server: API_SERVER
      name: default
    contexts:
    - context: {cluster: default, namespace: default, user: default}
      name: default
    current-context: default
    users:
    - name: default
      user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  updateStrategy: {type: RollingUpdate}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      priorityClassName: system-node-critical
      serviceAccountName: kube-proxy
      hostNetwork: true
      nodeSelector: {kubernetes.io/os: linux}
      tolerations: [{operator: Exists}]
      containers:
      - name: kube-proxy
        image: IMAGE
        imagePullPolicy: IfNotPresent
        command: [/usr/local/bin/kube-proxy, --config=/var/lib/kube-proxy/config.conf, --hostname-override=$(NODE_NAME)]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: kube-proxy, mountPath: /var/lib/kube-proxy}
        - {name: xtables-lock, mountPath: /run/xtables.lock}
        - {name: lib-modules, mountPath: /lib/modules, readOnly: true}
      volumes:
      - {name: kube-proxy, configMap: {name: kube-proxy}}
      - {name: xtables-lock, hostPath: {path: /run/xtables.lock, type: FileOrCreate}}
      - {name: lib-modules, hostPath: {path: /lib/modules}}
`

// writeKubeProxyImage writes an image archive with kube-proxy and the programs that it runs.
func (b *builder) writeKubeProxyImage(archive string) error {
	var tree image.Tree
	for name, link := range map[string]string{"nft": "/usr/local/bin/nft", "dash": "/bin/sh"} {
		at, err := image.Find(name)
		if err != nil {
			return fmt.Errorf("make an image of kube-proxy: %w", err)
		}
		tree.Program(at)
		tree.Link(link, at)
	}
	if err := toolbox.AddIptables(&tree); err != nil {
		return fmt.Errorf("make an image of kube-proxy: %w", err)
	}
	tree.Program(b.KubeProxy)
	tree.Copy("/usr/local/bin/kube-proxy", b.KubeProxy)
	tree.Dir("/run", 0o755)
	tree.Dir("/tmp", 0o777|os.ModeSticky)
	layer, err := tree.Layer()
	if err != nil {
		return fmt.Errorf("make an image of kube-proxy: %w", err)
	}
	img := image.Image{Names: []string{kubeProxyImage}, Layers: []*image.Layer{layer}}
	img.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return image.WriteFile(archive, img)
}

// deployKubeProxy applies kube-proxy's DaemonSet and its other objects.
func (b *builder) deployKubeProxy(ctx context.Context) error {
	config, _, err := b.client()
	if err != nil {
		return err
	}
	data := strings.NewReplacer("CLUSTER_CIDR", list(b.plan.Pods()), "API_SERVER", b.plan.APIServer(),
		"METRICS_ADDRESS", kubeProxyAddress, "MODE", b.ProxyMode, "IMAGE", kubeProxyImage).Replace(kubeProxyManifest)
	var objects []*unstructured.Unstructured
	for _, document := range strings.Split(data, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			return fmt.Errorf("read the manifest of kube-proxy: %w", err)
		}
		objects = append(objects, o)
	}
	return manifest.Apply(ctx, config, objects)
}

// waitKubeProxy waits until kube-proxy runs on every node. It fails if a kube-proxy keeps ending.
func (b *builder) waitKubeProxy(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	var broken error
	err = apiclient.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-proxy"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, c := range pod.Status.ContainerStatuses {
				if c.RestartCount > 0 && c.State.Waiting != nil {
					said, err := lastLog(ctx, client, pod)
					if err != nil {
						return err
					}
					broken = fmt.Errorf("kube-proxy keeps ending; it said last: %s", said)
					return nil
				}
			}
		}
		for _, n := range b.state.nodes() {
			if _, err := b.proxyMode(fabric.NodeName(n), kubeProxyAddress); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(broken, err); err != nil {
		return err
	}
	b.Done("kube-proxy runs on %s", count(b.Nodes, "node"))
	return nil
}

// lastLog returns the last log line of a pod's previous container.
func lastLog(ctx context.Context, client kubernetes.Interface, pod corev1.Pod) (string, error) {
	data, err := client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Previous: true}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of %s: %w", pod.Name, err)
	}
	last := text.LastLine(string(data))
	// The kubelet sends this text instead of an error if it has just removed the container.
	if strings.HasPrefix(last, "unable to retrieve container logs") {
		return "", fmt.Errorf("read the log of %s: %s", pod.Name, last)
	}
	return last, nil
}
