package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/node"
)

// podNetwork keeps this node's part of the pod network as the cluster's nodes say.
type podNetwork struct {
	log      *slog.Logger
	src      *kube.Source
	network  *node.Network
	changed  <-chan struct{}
	maxRetry time.Duration
}

// Run works until ctx ends. What failed is tried again, and so is everything once in
// a while: routes and files have other writers.
func (p *podNetwork) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.src.Synced():
	}
	const (
		firstRetry = 200 * time.Millisecond
		resync     = 4 * time.Second // others write routes, rules and files too
	)
	pause := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-timer.C:
		}
		if err := p.sync(ctx); err != nil && ctx.Err() == nil {
			p.log.Error("the pod network is not complete, will try again",
				"err", strings.ReplaceAll(err.Error(), "\n", "; "), "again", pause)
			timer.Reset(pause)
			pause = min(2*pause, p.maxRetry)
			continue
		}
		pause = firstRetry
		timer.Reset(resync)
	}
}

func (p *podNetwork) sync(ctx context.Context) error {
	self, ok := p.src.Node()
	if !ok {
		p.log.Debug("this node is not registered yet; the pod network waits")
		return nil
	}
	var peers []node.Peer
	for _, n := range p.src.Nodes() {
		peers = append(peers, toPeer(n))
	}
	return p.network.Sync(ctx, toPeer(self), peers)
}

func toPeer(n kube.Node) node.Peer {
	return node.Peer{Name: n.Name, Addrs: n.Addrs, PodCIDRs: n.PodCIDRs}
}
