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

// ErrReleased ends an agent's run: another proxy carries Services, and no rules of ours are left. The next run finds a
// node without our rules.
var ErrReleased = errors.New("another proxy has taken over")

// A Release is the datapath of an agent in mode none, on a node that still has rules of one of our modes. Rules without
// updates would send packets to pods that are gone. So a Release keeps the rules up to date until another proxy's rules
// appear. Then it removes our rules, as soon as connections allow.
//
//	Sync, Check ─→ Find: no rules of Services ─→ the datapath of the mode, as before
//	                 └─→ rules of Services ───→ its Drain, until done ─→ Wait returns ErrReleased
//
// From the first look that finds rules of Services, a Release writes nothing for kubeProxyPause, and then drains: a
// kube-proxy writes its families and tables one after the other.
type Release struct {
	datapath.Datapath
	log      *slog.Logger
	find     func(context.Context) ([]Remain, error)
	seen     time.Time // when another proxy's rules were first seen; zero: there are none
	leaving  bool
	logged   string // the last error that was logged
	released chan struct{}
	left     bool // released is closed
}

// NewRelease returns a Release that owns dp.
func NewRelease(log *slog.Logger, dp datapath.Datapath) *Release {
	return &Release{Datapath: dp, log: log, find: (&KubeProxy{}).Find, released: make(chan struct{})}
}

// Wait returns ErrReleased when no rules of ours are left, or nil when ctx ends.
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

// WaitForKubeProxy returns nil when another proxy's rules of Services have been on this node for some seconds. It
// returns an error when ctx ends, or when the rules cannot be read. It is for a cleanup while no agent runs.
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

// leave reports whether another proxy carries Services here. If it has done so for a while, leave removes our rules. It
// looks before each pass, because a pass would change kube-proxy's chains: ours have equal names.
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

// failed reports whether err is an error, and logs each error once.
func (r *Release) failed(ctx context.Context, err error) bool {
	if err != nil && ctx.Err() == nil && err.Error() != r.logged {
		r.log.Warn("cannot hand Services over to another proxy, will try again", "mode", r.Info().Name, "err", err)
		r.logged = err.Error()
	}
	return err != nil
}
