package kube

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/service"
)

// podWeights knows the weights of the pods of Services that ask for weights. It follows
// the feed of Services and has one feed of pods for each selector that they use. Pods of
// other Services are never asked for.
type podWeights struct {
	store *Store
	start func() // at the first call it starts what follows Services
	wake  chan struct{}

	// mu may be taken with the lock of a feed or a subscription held, and none of those
	// with mu held.
	mu        sync.Mutex
	watches   map[podSelector]*podWatch
	followers []func(user service.Name)
	settled   []func()
}

// A podWatch knows the weights of the pods of the Services that have one selector.
type podWatch struct {
	pods  *Feed[PodWeight]
	run   func(context.Context)
	users map[service.Name]bool // guarded by podWeights.mu
	stop  context.CancelFunc    // belongs to podWeights.run; nil: not running
}

func newPodWeights(s *Store) *podWeights {
	p := &podWeights{store: s, wake: make(chan struct{}, 1), watches: map[podSelector]*podWatch{}}
	p.start = sync.OnceFunc(func() {
		s.services.follow(p.serviceChanged)
		s.start(p.input(), p.run)
	})
	return p
}

// follow calls changed for each Service whose pods change their weights.
func (p *podWeights) follow(changed func(user service.Name)) {
	p.mu.Lock()
	p.followers = append(p.followers, changed)
	p.mu.Unlock()
	p.start()
}

func (p *podWeights) onSettle(check func()) {
	p.mu.Lock()
	p.settled = append(p.settled, check)
	p.mu.Unlock()
}

func (p *podWeights) input() input {
	return input{"pods", "pods of Services with " + annotationWeights + " weigh the same", p.progress, p.len}
}

// progress is that of the feed that is least far, of those that are asked for.
func (p *podWeights) progress() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	least := listed
	for _, w := range p.watches {
		if len(w.users) > 0 {
			least = min(least, w.pods.progress.Load())
		}
	}
	return least
}

func (p *podWeights) len() int {
	p.mu.Lock()
	watches := slices.Collect(maps.Values(p.watches))
	p.mu.Unlock()
	n := 0
	for _, w := range watches {
		n += w.pods.Len()
	}
	return n
}

// of returns the weights of the pods that a selector selects, as far as they are known.
func (p *podWeights) of(selector podSelector) []*PodWeight {
	p.mu.Lock()
	w := p.watches[selector]
	p.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.pods.All()
}

// serviceChanged follows which pods are asked for. The lock of the feed of Services is
// held.
func (p *podWeights) serviceChanged(name service.Name, old, new *serviceRecord, _ int64) {
	var was, is *podSelector
	if old != nil {
		was = old.pods
	}
	if new != nil {
		is = new.pods
	}
	switch {
	case was == nil && is == nil, was != nil && is != nil && *was == *is:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if was != nil {
		delete(p.watches[*was].users, name)
	}
	if is != nil {
		w := p.watches[*is]
		if w == nil {
			w = p.newWatch(*is)
			p.watches[*is] = w
		}
		w.users[name] = true
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *podWeights) newWatch(selector podSelector) *podWatch {
	k := kind[*corev1.Pod, PodWeight]{
		name: "pods", object: &corev1.Pod{}, client: from(p.store.cfg.Client.CoreV1().Pods(selector.namespace)),
		only:    metav1.ListOptions{LabelSelector: selector.labels},
		trim:    ConvertPod,
		without: p.input().without,
	}
	w := &podWatch{users: map[service.Name]bool{}, pods: newFeed(p.store.cfg.Log, k)}
	w.pods.followers = append(w.pods.followers, func(service.Name, *PodWeight, *PodWeight, int64) { p.notify(w) })
	w.pods.onSettle(p.check)
	w.run = newReflector(p.store, k, w.pods).RunWithContext
	return w
}

// notify marks the Services of a watch as changed.
func (p *podWeights) notify(w *podWatch) {
	p.mu.Lock()
	users, followers := slices.Collect(maps.Keys(w.users)), slices.Clone(p.followers)
	p.mu.Unlock()
	for _, changed := range followers {
		for _, user := range users {
			changed(user)
		}
	}
}

// check lets the gates that wait for pods look again.
func (p *podWeights) check() {
	p.mu.Lock()
	checks := slices.Clone(p.settled)
	p.mu.Unlock()
	for _, check := range checks {
		check()
	}
}

// run starts and stops watches of pods as Services ask for weights.
func (p *podWeights) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		p.mu.Lock()
		for selector, w := range p.watches {
			switch {
			case len(w.users) == 0:
				if w.stop != nil {
					w.stop()
				}
				delete(p.watches, selector)
			case w.stop == nil:
				var watching context.Context
				watching, w.stop = context.WithCancel(ctx)
				wg.Go(func() { w.run(watching) })
			}
		}
		p.mu.Unlock()
		p.check() // what a gate waited for may be gone
	}
}
