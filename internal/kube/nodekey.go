package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/text"
)

// AnnotationWireGuardKey of a Node is its public key of WireGuard's, in base64. Its agent writes it. What keeps an
// agent from writing another Node's is deploy/components/wireguard/policy.yaml, and a kubelet the
// admission plugin NodeRestriction.
const AnnotationWireGuardKey = "fairway.net/wireguard-public-key"

// publishLimit bounds one write: its caller does more than that.
const publishLimit = 5 * time.Second

// PublishWireGuardKey has the key in the object of the node that we run on; empty: there is none.
func (s *Store) PublishWireGuardKey(ctx context.Context, key string) error {
	value := any(key)
	if key == "" {
		value = nil
	}
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	if err := patchNode(ctx, s.cfg.Client, s.cfg.NodeName, "annotations", AnnotationWireGuardKey, value); err != nil {
		return fmt.Errorf("annotate node %s: %w", s.cfg.NodeName, err)
	}
	return nil
}

// patchNode gives a label or an annotation of a Node a value; nil removes it.
func patchNode(ctx context.Context, client kubernetes.Interface, node, field, key string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{field: map[string]any{key: value}}})
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return text.OneLine(err)
}
