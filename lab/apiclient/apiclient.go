// Package apiclient has how the lab's parts ask its API server, and wait for it.
//
//	kubeconfig ──→ New ──→ client ──→ Poll: again and again, until it answers as wanted
//
// It promises that no question is held back, and that none stays without an answer or an error for more than ten seconds.
package apiclient

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// New makes a client of whom a kubeconfig names.
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

// Ready asks whether the API server is ready: then its own roles and priority classes are there.
func Ready(ctx context.Context, client kubernetes.Interface) error {
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// Poll tries f until it returns nil. When ctx ends first, the error has the last error of f.
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
