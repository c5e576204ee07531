// Package apiclient makes clients of the lab's API server, and waits for its answers.
//
//	kubeconfig ──→ New ──→ client ──→ Poll: again and again, until the answer is right
//
// It promises that the client delays no request. Every request gets an answer or an error within ten seconds.
package apiclient

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// New makes a client with the identity in a kubeconfig.
func New(kubeconfig string) (*rest.Config, *kubernetes.Clientset, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.Burst = -1, -1
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	return config, client, nil
}

// Ready returns an error unless the API server is ready. A ready server has created its own roles and priority classes.
func Ready(ctx context.Context, client kubernetes.Interface) error {
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// Poll calls f until it returns nil. If ctx ends first, the error wraps the last error of f.
func Poll(ctx context.Context, every time.Duration, f func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
