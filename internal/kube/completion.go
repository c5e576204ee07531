package kube

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/fairway-net/fairway/internal/text"
)

// maxNames bounds the names that a shell offers.
const maxNames = 500

// Names returns the names of objects of the core group: "nodes", "namespaces", or with a namespace "pods" and "services";
// at most 500. The API server sends only their metadata.
func (c Connection) Names(ctx context.Context, resource, namespace string) ([]string, error) {
	cfg, err := c.restConfig(serviceAccount)
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server at %s: %w", cfg.Host, text.OneLine(err))
	}
	list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: maxNames})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, text.RequestError(err))
	}
	var names []string
	for _, o := range list.Items {
		names = append(names, o.Name)
	}
	return names, nil
}
