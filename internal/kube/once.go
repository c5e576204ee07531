package kube

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// Once reads the input of Services and ends, for commands that look once. It fails if ctx ends first.
func Once(ctx context.Context, cfg Config) (*Store, *Services, error) {
	s := New(cfg)
	services := s.SubscribeServices("command")
	if err := s.ReadOnce(ctx, services.Synced(), "see --master, --kubeconfig and --timeout"); err != nil {
		return nil, nil, err
	}
	return s, services, nil
}

// troublePause is how long a command waits for a list that the API server did not deliver at first: the server may be
// restarting. A person does not wait for the whole timeout.
const troublePause = 1500 * time.Millisecond

// ReadOnce runs the store until synced is closed. It fails with advice if ctx ends first, or soon after lists fail.
func (s *Store) ReadOnce(ctx context.Context, synced <-chan struct{}, advice string) error {
	reading, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(reading) }()
	defer func() { stop(); <-ended }()
	tick := time.NewTicker(troublePause / 10)
	defer tick.Stop()
	for {
		select {
		case <-synced:
			return nil
		case <-ctx.Done():
			return unanswered(s.Troubles(), context.Cause(ctx), advice)
		case <-tick.C:
			awaited := slices.DeleteFunc(s.Troubles(), func(t Trouble) bool { return t.Without != "" })
			if slices.ContainsFunc(awaited, func(t Trouble) bool { return time.Since(t.Since) > troublePause }) {
				return unanswered(awaited, nil, advice)
			}
		}
	}
}

// Unread returns why a consumer does not see the present objects, for a person: the error of ReadOnce. It returns nil if it
// sees them. With late, lists of which nothing is known count as not answered.
func (s *Store) Unread(late bool, advice string) error {
	awaited := slices.DeleteFunc(s.Troubles(), func(t Trouble) bool { return t.Without != "" || time.Since(t.Since) < troublePause })
	switch {
	case late && len(awaited) == 0:
		return unanswered(nil, context.DeadlineExceeded, advice)
	case len(awaited) > 0:
		return unanswered(awaited, nil, advice)
	}
	return nil
}

// unanswered returns the error of a command that could not read the API server, after its time was up or at once.
func unanswered(all []Trouble, timeUp error, advice string) error {
	why := Unreadable(all)
	switch {
	case slices.ContainsFunc(all, func(t Trouble) bool { return t.Refused }):
		return fmt.Errorf("the API server refuses to list %s [%s]", why, advice)
	case timeUp == nil:
		return fmt.Errorf("cannot read the API server: %s [%s]", why, advice)
	case why != "":
		return fmt.Errorf("the API server did not answer in time: %w; %s [%s]", timeUp, why, advice)
	}
	return fmt.Errorf("the API server did not answer in time: %w [%s]", timeUp, advice)
}

// List reads a kind once, from the API server's cache. It returns no objects and no error if the API server does not
// have the kind.
func (k Kind[O, V]) List(ctx context.Context) (all []*V, err error) {
	options := k.Only
	options.ResourceVersion = "0"
	list, err := k.Client.list(ctx, options)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err == nil:
		err = meta.EachListItem(list, func(o runtime.Object) error {
			if one, ok := o.(O); ok {
				if v := k.Trim(one); v != nil {
					all = append(all, v)
				}
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", k.Name, text.RequestError(err))
	}
	return all, nil
}

// Table compiles all Services and host ports.
func (v *Services) Table(facts service.Facts, ports service.HostPorts) *service.Table {
	b := service.NewBuilder().Limit(facts.Limits)
	for _, r := range v.store.services.All() {
		b.Set(service.Compile(r, v.Slices(r.Name), facts))
	}
	for i := range ports.Pods {
		b.Set(service.CompileHostPod(&ports.Pods[i], ports.Addrs, facts.Node))
	}
	return b.Table(facts.Settings)
}
