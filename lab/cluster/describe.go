package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/kubeadm"
)

// describe records the cluster's settings in the objects where users of kubeadm look for them. It writes the ConfigMap
// kubeadm-config, and puts the flags of kube-apiserver into `kubectl cluster-info dump`. In a kubeadm cluster the dump
// shows the static pods of the control plane. The lab's control plane has no kubelet, so an annotation of the Service
// "kubernetes" shows the flags.
func (b *builder) describe(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	err = createOnce(ctx, client, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config", Annotations: map[string]string{
			"lab.fairway.net/note": "written by fairway-lab, with the lab's true values; kubeadm was not used",
		}},
		Data: map[string]string{"ClusterConfiguration": b.clusterConfiguration()},
	})
	if err != nil {
		return err
	}
	note, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		"lab.fairway.net/kube-apiserver": "--service-cluster-ip-range=" + list(b.plan.Services()),
	}}})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	// The API server creates the Service "kubernetes" some moments after it is ready.
	err = apiclient.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		_, err := client.CoreV1().Services(metav1.NamespaceDefault).Patch(ctx, "kubernetes", types.MergePatchType, note, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("annotate Service kubernetes: %w", err)
	}
	return nil
}

// clusterConfiguration returns the configuration that a user would give kubeadm for this cluster.
func (b *builder) clusterConfiguration() string {
	return fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: %s
controlPlaneEndpoint: %s
kubernetesVersion: %s
networking:
  dnsDomain: cluster.local
  podSubnet: %s
  serviceSubnet: %s
`, b.id(), b.plan.APIServer()[len("https://"):], kubeadm.Version(), list(b.plan.Pods()), list(b.plan.Services()))
}

// createOnce creates a ConfigMap if it does not exist.
func createOnce(ctx context.Context, client kubernetes.Interface, c *corev1.ConfigMap) error {
	_, err := client.CoreV1().ConfigMaps(c.Namespace).Create(ctx, c, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return fmt.Errorf("create ConfigMap %s: %w", c.Name, err)
}
