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

// waitNodes waits until every node is registered, and Ready when there is
// something that makes it so.
func (b *builder) waitNodes(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	registered := false
	err = apiclient.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(nodes.Items) < b.Nodes {
			return fmt.Errorf("%d of %d nodes are registered", len(nodes.Items), b.Nodes)
		}
		if !registered {
			b.Done("%s registered", count(b.Nodes, "node"))
			registered = true
		}
		for _, n := range nodes.Items {
			if err := b.plainCNI(&n); err != nil {
				return err
			}
		}
		return notReady(nodes.Items, b.Deploy != "")
	})
	if err != nil {
		return fmt.Errorf("wait for nodes: %w", err)
	}
	if b.Deploy != "" {
		b.Done("all nodes Ready")
	}
	return nil
}

// notReady names the first node that is not ready, and why. Without a pod
// network no node will be: then a pod CIDR is all that is asked for.
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

// unready says why the node is not ready; "" means it is.
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

// routePods lets the control plane reach pods, as "kubectl get --raw
// …/services/NAME/proxy" and webhooks need; with the pod network bridge, everybody.
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

// lastWords is the end of the log of every process that has ended, for an error's
// text.
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
