package top

import (
	"context"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/kube"
)

// A finder finds the agents' pods. Any goroutine may call find.
type finder struct {
	list func(context.Context) ([]kube.AgentPod, error)
	mu   sync.Mutex
	all  []kube.AgentPod
	at   time.Time // when all was read
}

// find returns the agent of a node. If it is not known to run, the pods are read again, at most every few seconds: an
// upgrade replaces them.
func (f *finder) find(ctx context.Context, node string) (kube.AgentPod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) >= retryAfter {
		ctx, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		all, err := f.list(ctx)
		if err != nil {
			return kube.AgentPod{}, err
		}
		f.all, f.at = all, time.Now()
	}
	return kube.AgentOn(f.all, node)
}
