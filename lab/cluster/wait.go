package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairway-net/fairway/internal/text"
	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
)

func (l Lab) client() (*rest.Config, *kubernetes.Clientset, error) {
	return apiclient.New(l.Kubeconfig())
}

func (b *builder) waitAPI(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	err = apiclient.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		return apiclient.Ready(ctx, client)
	})
	if err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	b.Done("control plane ready")
	return nil
}

// waitRegistered waits until every node is registered.
func (b *builder) waitRegistered(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	err = apiclient.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err == nil && len(nodes.Items) < b.Nodes {
			err = fmt.Errorf("%d of %d nodes are registered", len(nodes.Items), b.Nodes)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	return nil
}

// waitNodes waits until every node is registered. If the lab deploys manifests, it also waits until every node is
// Ready.
func (b *builder) waitNodes(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	if err := b.waitRegistered(ctx); err != nil {
		return err
	}
	b.Done("%s registered", count(b.Nodes, "node"))
	err = apiclient.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if err := b.plainCNI(&n); err != nil {
				return err
			}
		}
		return notReady(nodes.Items, b.runsPods())
	})
	if err != nil {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	if b.runsPods() {
		b.Done("all nodes Ready")
	}
	return nil
}

// notReady returns an error for the first node that is not ready. Without a pod network no node becomes ready, so then
// a node only needs a pod CIDR.
func notReady(nodes []corev1.Node, network bool) error {
	for _, n := range nodes {
		if len(n.Spec.PodCIDRs) == 0 {
			return fmt.Errorf("%s has no pod CIDR", n.Name)
		}
		if why := unready(n); network && why != "" {
			return fmt.Errorf("%s is not ready: %s", n.Name, why)
		}
	}
	return nil
}

// unready returns the reason why a node is not ready, or "" if it is ready.
func unready(n corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return ""
		}
		return c.Message
	}
	return "it has not reported"
}

// routePods lets the control plane reach pods, which webhooks and "kubectl get --raw …/services/NAME/proxy" need. With
// the pod network bridge, it routes pods' packets for every machine.
func (b *builder) routePods(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range nodes.Items {
		for _, cidr := range n.Spec.PodCIDRs {
			prefix, err := netip.ParsePrefix(cidr)
			if err != nil {
				return fmt.Errorf("read podCIDR of %s: %w", n.Name, err)
			}
			for _, a := range n.Status.Addresses {
				via, err := netip.ParseAddr(a.Address)
				if err != nil || via.Is4() != prefix.Addr().Is4() {
					continue
				}
				number, err := nodeNumber(n.Name)
				if err != nil {
					return err
				}
				if err := b.fabric().RoutePods(b.plan, number, prefix, via); err != nil {
					return err
				}
				if b.PodNetwork != podNetworkBridge {
					continue
				}
				if err := b.fabric().Route(fabric.Switch, prefix, via); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lastWords returns the last log line of every process that has ended, for the text of an error.
func (b *builder) lastWords() string {
	var words strings.Builder
	for _, name := range b.state.dead() {
		data, err := os.ReadFile(filepath.Join(b.logs(), name+".log"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		fmt.Fprintf(&words, "; %s said last: %s", name, text.LastLine(string(data)))
	}
	return words.String()
}
