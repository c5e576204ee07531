package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairway-net/fairway/internal/oneline"
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
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationWireGuardKey: value}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	if _, err := s.cfg.Client.CoreV1().Nodes().Patch(ctx, s.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", s.cfg.NodeName, oneline.Error(err))
	}
	return nil
}
