package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/text"
)

// AnnotationWireGuardKey is the annotation of a Node with its WireGuard public key, in base64. The node's agent writes
// it. deploy/components/wireguard/policy.yaml prevents an agent from writing another Node's key, and the admission
// plugin NodeRestriction prevents a kubelet.
const AnnotationWireGuardKey = "fairway.net/wireguard-public-key"

// publishLimit bounds one write, because the caller has other work.
const publishLimit = 5 * time.Second

// PublishWireGuardKey writes the key into our Node object; empty: it removes the key.
func (s *Store) PublishWireGuardKey(ctx context.Context, key string) error {
	value := any(key)
	if key == "" {
		value = nil
	}
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	if err := PatchNode(ctx, s.cfg.Client, s.cfg.NodeName, "annotations", AnnotationWireGuardKey, value); err != nil {
		return fmt.Errorf("annotate node %s: %w", s.cfg.NodeName, err)
	}
	return nil
}

// PatchNode sets a label or an annotation of a Node; nil removes it.
func PatchNode(ctx context.Context, client kubernetes.Interface, node, field, key string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{field: map[string]any{key: value}}})
	if err == nil {
		_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return text.OneLine(err)
}

// ClearNetworkUnavailable sets the condition NetworkUnavailable of our Node to false if it is true. Clouds set it on a new
// node, and the taint that follows keeps pods away until the pod network clears it.
func (s *Store) ClearNetworkUnavailable(ctx context.Context) error {
	n, ok := s.Node()
	if !ok || !n.NetworkUnavailable {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "FairwayIsReady",
		Message: "Fairway's pod network works on this node", LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err == nil {
		_, err = s.cfg.Client.CoreV1().Nodes().Patch(ctx, s.cfg.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("clear the condition NetworkUnavailable of node %s: %w", s.cfg.NodeName, text.OneLine(err))
	}
	return nil
}
