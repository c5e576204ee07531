package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// An Election is a Lease and its candidates. All fields except the durations and Standing are required.
type Election struct {
	Log             *slog.Logger
	Client          kubernetes.Interface
	Namespace, Name string // of the Lease
	// Identity names this process, different from all candidates: the pod's name.
	Identity string
	// Duration is the time that candidates wait for a silent leader, in whole seconds. A leader that cannot renew its
	// Lease for Renew, which is shorter, stops. Retry is the time between two tries. Zero: 15 s, 10 s and 2 s, as in
	// Kubernetes' controllers.
	Duration, Renew, Retry time.Duration
	// Standing receives the state of the election; nil: unused.
	Standing *Standing
}

// Elect runs lead while this process is the leader, until ctx ends, which is no error, or lead returns by itself. When
// the process is no longer the leader, Elect ends lead's context, waits until lead has returned, and is a candidate
// again. It gives the Lease back only after lead has returned, so that two leaders never run at once.
//
// A Lease is no fence: a process that slept for longer than Duration notices the next leader late. The writes of lead
// must tolerate this.
func Elect(ctx context.Context, e Election, lead func(context.Context) error) error {
	e.Duration, e.Renew, e.Retry = cmp.Or(e.Duration, 15*time.Second), cmp.Or(e.Renew, 10*time.Second), cmp.Or(e.Retry, 2*time.Second)
	for {
		lost, err := e.term(ctx, lead)
		if !lost || ctx.Err() != nil {
			return err
		}
		e.Log.Warn("this process is no longer the leader, and is a candidate again", "lease", e.Namespace+"/"+e.Name, "err", err)
	}
}

// term waits until the process is elected, and leads once. lost says that the Lease was lost meanwhile.
func (e Election) term(ctx context.Context, lead func(context.Context) error) (lost bool, err error) {
	started, returned := make(chan context.Context, 1), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: boundedLock{&resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
			Client:     e.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
		}, e.Renew / 2, returned},
		LeaseDuration: e.Duration, RenewDeadline: e.Renew, RetryPeriod: e.Retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { started <- leading },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return false, fmt.Errorf("stand for Lease %s/%s: %w", e.Namespace, e.Name, err)
	}
	e.Standing.stands(elector)
	// The elector renews the Lease until lead has returned, also after the end of ctx.
	standing, quit := context.WithCancel(context.WithoutCancel(ctx))
	standing = klog.NewContext(standing, quietly(e.Log, func(string) bool { return true }))
	ended := make(chan struct{})
	go func() { defer close(ended); elector.Run(standing) }()
	defer func() { close(returned); quit(); <-ended }()
	var term context.Context
	select {
	case <-ctx.Done():
		return false, nil
	case term = <-started:
	}
	e.Log.Info("this process is the leader", "lease", e.Namespace+"/"+e.Name, "identity", e.Identity)
	leading, cancel := context.WithCancel(term)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	defer e.Standing.leads(leading)()
	err = lead(leading)
	return term.Err() != nil, err
}

// boundedLock is a lock with a deadline for each request. client-go would wait for a silent API server forever, and
// would not notice that the server answers again. boundedLock also keeps the Lease until lead has returned. client-go
// gives the Lease back as soon as it cannot renew it in time.
type boundedLock struct {
	resourcelock.Interface
	timeout  time.Duration
	returned chan struct{} // closed when lead has returned
}

// Get is a part of resourcelock.Interface.
func (l boundedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.Interface.Get(ctx)
}

// Create is a part of resourcelock.Interface.
func (l boundedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.Interface.Create(ctx, r)
}

// Update is a part of resourcelock.Interface.
func (l boundedLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" {
		select {
		case <-l.returned:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.Interface.Update(ctx, r)
}
