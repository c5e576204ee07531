package cluster

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/lab/apiclient"
)

// Redeploy loads the current image and applies the current manifests of Fairway again. It uses the overlay with which
// the lab was started, with the user's edits. It waits until every agent is new.
func (l Lab) Redeploy(ctx context.Context, p *Progress) error {
	b, unlock, err := l.resumeWhole(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	if b.Deploy == "" {
		return fmt.Errorf("the lab was started without manifests [%s]", l.Command("down, then up without --deploy ''"))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("not ready after %s", Timeout))
	defer cancel()
	if b.Image != "" {
		if err := b.importAll(ctx, b.state, []string{b.Image}); err != nil {
			return err
		}
		b.Done("image loaded into %s", count(len(b.state.nodes()), "node"))
	}
	text, err := b.kept("overlay", b.overlay())
	if err != nil {
		return err
	}
	if err := b.apply(ctx, "overlay", text); err != nil {
		return err
	}
	if err := b.redeployBalancer(ctx); err != nil {
		return err
	}
	if err := b.guard(ctx, b.waitAgents); err != nil {
		return err
	}
	b.Done("fairway redeployed")
	return nil
}

// waitAgents waits until all pods of the DaemonSet are ready and of its newest generation.
func (b *builder) waitAgents(ctx context.Context) error {
	_, client, err := b.client()
	if err != nil {
		return err
	}
	err = apiclient.Poll(ctx, 200*time.Millisecond, func(ctx context.Context) error {
		d, err := client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(ctx, "fairway-agent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedNumberScheduled < s.DesiredNumberScheduled || s.NumberAvailable < s.DesiredNumberScheduled {
			return fmt.Errorf("%d of %d agents are new, %d are available", s.UpdatedNumberScheduled, s.DesiredNumberScheduled, s.NumberAvailable)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for the agents: %w", err)
	}
	return nil
}
