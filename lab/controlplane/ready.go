package controlplane

import (
	"context"
	"time"

	"github.com/fairway-net/fairway/lab/apiclient"
)

// waitReady waits until kube-apiserver is ready. Then its own roles and priority classes exist, which the other
// components need.
func (c Config) waitReady(ctx context.Context) error {
	_, client, err := apiclient.New(Kubeconfig(c.PKI, CertControllerManager))
	if err != nil {
		return err
	}
	return apiclient.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error { return apiclient.Ready(ctx, client) })
}
