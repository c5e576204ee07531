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
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/image"
	"github.com/fairway-net/fairway/internal/text"
	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/toolbox"
)

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
	c, err := b.kubeadm()
	if err != nil {
		return err
	}
	img := image.Image{Names: []string{c.KubeProxyImage()}, Layers: []*image.Layer{layer}}
	img.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return image.WriteFile(archive, img)
}

// deployKubeProxy makes kube-proxy's objects as kubeadm does.
func (b *builder) deployKubeProxy(context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	c, err := b.kubeadm()
	if err != nil {
		return err
	}
	return c.KubeProxy(client)
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
			if _, err := b.proxyMode(fabric.NodeName(n), b.kubeProxyAddress()); err != nil {
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
