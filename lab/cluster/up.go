package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/lab/fabric"
)

// Timeout is the time after which Up gives up.
const Timeout = 3 * time.Minute

// Up brings the lab up. It does nothing if the lab is already up. After an error no part of the lab is left, unless
// o.Keep is set.
func (l Lab) Up(ctx context.Context, o Options, p *Progress) error {
	o = o.Begun()
	if err := o.Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(l.Dir(), 0o755); err != nil {
		return fmt.Errorf("create lab directory: %w", err)
	}
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	proxy, err := l.running(o)
	if proxy != "" {
		p.Say("The lab is up already: %s, %s. KUBECONFIG=%s", count(o.Nodes, "node"), proxy, l.Kubeconfig())
	}
	if proxy != "" || err != nil {
		return err
	}
	ports, err := l.prepare(o)
	if err != nil {
		_ = os.Remove(l.Dir()) // removes only an empty directory, so a directory with a lab stays
		return err
	}
	defer ports.Close()
	b := &builder{Lab: l, Options: o, Progress: p, plan: o.plan(), ports: ports,
		state: &State{Options: o, Started: time.Now()}}
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("not ready after %s", Timeout))
	defer cancel()
	if err := b.build(ctx); err != nil {
		return b.giveUp(ctx, err)
	}
	return nil
}

// prepare checks that this machine can run the lab, and removes the remains of an earlier lab.
func (l Lab) prepare(o Options) (*listeners, error) {
	if err := o.checkMachine(); err != nil {
		return nil, err
	}
	ports, err := o.listen()
	if err != nil {
		return nil, err
	}
	if err := l.clear(); err != nil {
		ports.Close()
		return nil, err
	}
	if err := os.MkdirAll(l.logs(), 0o755); err != nil {
		ports.Close()
		return nil, fmt.Errorf("create log directory: %w", err)
	}
	return ports, nil
}

// giveUp removes the unfinished lab. The logs are removed as well, so the error contains their last lines.
func (b *builder) giveUp(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) {
		err = cause
	}
	err = fmt.Errorf("%w%s%s", err, b.lastWords(), b.inotifyWords())
	if b.Keep {
		return fmt.Errorf("%w [%s has what there is of it; %s removes it]", err, b.Dir(), b.Command("down"))
	}
	return errors.Join(err, b.remove())
}

// running describes the proxy that carries Services in the lab. It returns "" if the lab is not up. If a process has
// ended, or the lab's options differ from the wanted ones, it returns an error.
func (l Lab) running(o Options) (proxy string, err error) {
	s, err := l.load()
	if errors.Is(err, ErrNoLab) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if dead := s.dead(); len(dead) > 0 {
		return "", fmt.Errorf("the lab is broken: %s ended [%s starts it again, %s removes the lab]",
			strings.Join(dead, ", "), l.healCommand(dead[0]), l.Command("down"))
	}
	if !s.Ready {
		return "", fmt.Errorf("the lab is still coming up, or up was killed [wait, or %s removes it]", l.Command("down"))
	}
	have, found := s.Options, l.proxies(fabric.NodeName(1))
	proxy = proxyText(found, have.ProxyMode)
	if len(s.nodes()) != o.Nodes || have.Family != o.Family || have.KubeProxy != o.KubeProxy || have.Like != o.Like || have.LoadBalancer != o.LoadBalancer || have.EdgeTarget != o.EdgeTarget || have.NetworkPolicy != o.NetworkPolicy || have.Gateway != o.Gateway || have.MetricsServer != o.MetricsServer || have.PodNetwork != o.PodNetwork || have.Subnets != o.Subnets || !slices.Equal(have.Publish, o.Publish) || !s.runs(found, o.ProxyMode) {
		return "", fmt.Errorf("a lab with other options is up: %s, %s, %s [%s removes it]",
			count(len(s.nodes()), "node"), proxy, have.Family, l.Command("down"))
	}
	return proxy, nil
}

// A builder is one run of Up.
type builder struct {
	Lab
	Options
	*Progress
	plan  fabric.Plan
	ports *listeners
	state *State
	mu    sync.Mutex // guards the processes in state, which start concurrently
}

// build makes all parts of the lab, in parallel where possible. While the control plane starts, images are unpacked and
// nodes start.
func (b *builder) build(ctx context.Context) error {
	if err := b.save(b.state); err != nil {
		return err
	}
	if err := b.makeMountpoints(); err != nil {
		return err
	}
	var parts errgroup.Group
	parts.Go(b.makePKI)
	parts.Go(func() error { return b.fabric().Create(b.plan, b.Nodes) })
	if err := parts.Wait(); err != nil {
		return err
	}
	b.Done("network and certificates made")
	if err := b.startControlPlane(); err != nil {
		return err
	}
	if b.routerIn() != "" {
		if err := b.startRouter(); err != nil {
			return err
		}
	}
	if err := b.startCluster(ctx); err != nil {
		return err
	}
	switch {
	case b.Like == LikeKubeadm:
		if err := b.guard(ctx, b.initKubeadm); err != nil {
			return err
		}
	case b.KubeProxy != "":
		if err := b.guard(ctx, b.deployKubeProxy); err != nil {
			return err
		}
	}
	if err := b.guard(ctx, b.waitNodes); err != nil {
		return err
	}
	if err := b.routePods(ctx); err != nil {
		return err
	}
	if b.KubeProxy != "" {
		if err := b.guard(ctx, b.waitKubeProxy); err != nil {
			return err
		}
	}
	if b.runsPods() {
		if err := b.guard(ctx, b.waitDNS); err != nil {
			return err
		}
	}
	if err := b.guard(ctx, b.deployBalancer); err != nil {
		return err
	}
	b.state.Ready = true
	if err := b.save(b.state); err != nil {
		return err
	}
	b.Say("\nThe lab is up. Try: %s   (or export KUBECONFIG=%s)", b.Command("kubectl get nodes"), b.Kubeconfig())
	return nil
}

// startCluster runs two tasks in parallel. The first waits for the control plane and creates the cluster's objects. The
// second unpacks images and starts the nodes.
func (b *builder) startCluster(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return b.guard(ctx, func(ctx context.Context) error {
			if err := b.deployAll(ctx); err != nil {
				return err
			}
			if err := b.describe(ctx); err != nil {
				return err
			}
			return b.registerMetrics(ctx)
		})
	})
	group.Go(func() error {
		if err := b.unpackImages(ctx); err != nil {
			return err
		}
		return b.startNodes(ctx)
	})
	return group.Wait()
}

// guard runs a step until it is done. It cancels the step if a process of the lab ends.
func (b *builder) guard(ctx context.Context, step func(context.Context) error) error {
	return guard(ctx, b.dead, step)
}

// guardOne is guard for one process of the lab. A user may have ended the others on purpose.
func (b *builder) guardOne(ctx context.Context, name string, step func(context.Context) error) error {
	return guard(ctx, func() []string {
		if b.process(name).Alive() {
			return nil
		}
		return []string{name}
	}, step)
}

func guard(ctx context.Context, dead func() []string, step func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- step(ctx) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil && context.Cause(ctx) != nil && errors.Is(err, context.Canceled) {
				return context.Cause(ctx)
			}
			return err
		case <-tick.C:
			if ended := dead(); len(ended) > 0 {
				cancel(fmt.Errorf("%s ended", strings.Join(ended, ", ")))
			}
		}
	}
}
