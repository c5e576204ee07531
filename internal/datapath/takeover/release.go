package takeover

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// ErrReleased ends an agent's run when another proxy carries Services and nothing of ours is
// left: the next run finds a node without rules of ours.
var ErrReleased = errors.New("another proxy has taken over")

// A Release is the datapath of an agent that must carry no Services, on a node where rules
// of one of our modes still do. Rules that nobody updates would send packets to pods that
// are gone, so it goes on with that mode until another proxy's rules are there; then it
// removes what is ours, as connections allow.
//
//	Sync, Check ─→ Find: nothing ──→ the datapath of the mode, as before
//	                 └─→ something ─→ its Drain, until done ─→ Wait returns ErrReleased
//
// Something is rules of Services. Between its first sight and Drain nothing is written for
// some seconds: a kube-proxy writes its families and tables one after the other.
type Release struct {
	datapath.Datapath
	log      *slog.Logger
	find     func(context.Context) ([]Remain, error)
	seen     time.Time // since when another proxy is here; zero: it is not
	leaving  bool
	logged   string // the last error that was logged
	released chan struct{}
	left     bool // released is closed
}

// NewRelease returns a Release of dp, which it owns.
func NewRelease(log *slog.Logger, dp datapath.Datapath) *Release {
	return &Release{Datapath: dp, log: log, find: (&KubeProxy{}).Find, released: make(chan struct{})}
}

// Wait returns ErrReleased when nothing of ours is left, or nil when ctx is done.
func (r *Release) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.released:
		return ErrReleased
	}
}

// Sync implements datapath.Datapath.
func (r *Release) Sync(ctx context.Context, want *service.Table) (datapath.Stats, error) {
	if r.leave(ctx) {
		return datapath.Stats{}, nil
	}
	return r.Datapath.Sync(ctx, want)
}

// Check implements datapath.Datapath.
func (r *Release) Check(ctx context.Context) (datapath.Drift, error) {
	if r.leave(ctx) {
		return datapath.Drift{}, nil
	}
	return r.Datapath.Check(ctx)
}

// WaitForKubeProxy returns when another proxy's rules of Services have been on this node for
// some seconds, or with an error when ctx is done or the rules cannot be read. It is for
// cleaning up where no agent runs any more.
func WaitForKubeProxy(ctx context.Context) error {
	return waitServes(ctx, (&KubeProxy{}).Find, kubeProxyPause)
}

func waitServes(ctx context.Context, find func(context.Context) ([]Remain, error), pause time.Duration) error {
	tick := time.NewTicker(pause / 10)
	defer tick.Stop()
	for seen := (time.Time{}); ; {
		remains, err := find(ctx)
		if err != nil {
			return err
		}
		switch serves := slices.ContainsFunc(remains, func(one Remain) bool { return one.serves }); {
		case !serves:
			seen = time.Time{}
		case seen.IsZero():
			seen = time.Now()
		case time.Since(seen) >= pause:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// leave reports whether another proxy is here, and removes what is ours when it has been
// for a while. It asks before each pass: a pass of ours would change rules of a kube-proxy
// whose chains have the same names.
func (r *Release) leave(ctx context.Context) bool {
	if r.left {
		return true
	}
	if !r.leaving {
		remains, err := r.find(ctx)
		remains = slices.DeleteFunc(remains, func(one Remain) bool { return !one.serves })
		if r.failed(ctx, err) || len(remains) == 0 {
			r.seen = time.Time{}
			return false
		}
		if r.seen.IsZero() {
			r.seen = time.Now()
		}
		if r.leaving = time.Since(r.seen) >= kubeProxyPause; !r.leaving {
			return true
		}
		r.log.Info("another proxy's rules are on this node: removing those of our mode", "mode", r.Info().Name, "rules", names(remains))
	}
	done, err := r.Drain(ctx)
	if !r.failed(ctx, err) && done {
		r.log.Info("removed the rules of our mode", "mode", r.Info().Name)
		r.left = true
		close(r.released)
	}
	return true
}

// failed reports whether err is one, and logs it once.
func (r *Release) failed(ctx context.Context, err error) bool {
	if err != nil && ctx.Err() == nil && err.Error() != r.logged {
		r.log.Warn("cannot hand Services over to another proxy, will try again", "mode", r.Info().Name, "err", err)
		r.logged = err.Error()
	}
	return err != nil
}
