package modes

import (
	"context"
	"errors"
	"log/slog"

	"github.com/fairway-net/fairway/internal/datapath"
)

// OpenHere opens the modes whose rules are on this node, of those that have the name: one, or
// for auto any. A mode that is named is opened even if it has no rules here. The caller
// closes them.
func (r Registry) OpenHere(ctx context.Context, log *slog.Logger, name string, o Options) ([]datapath.Datapath, error) {
	if name != datapath.Auto {
		dp, err := r.Choose(ctx, log, name, o)
		if err != nil {
			return nil, err
		}
		return []datapath.Datapath{dp}, nil
	}
	all, err := r.Found(ctx, o)
	if err == nil && len(all) == 0 {
		err = ErrNone
	}
	return all, err
}

// ErrNone is what Held fails with if no mode has rules.
var ErrNone = errors.New("no mode has rules on this node [is the agent running here?]")

// Current opens the mode that the agent with that --proxy-mode runs, or would run: for auto
// the one whose rules are on this node, else the best one.
func (r Registry) Current(ctx context.Context, log *slog.Logger, name string, o Options) (datapath.Datapath, error) {
	all, err := r.OpenHere(ctx, log, name, o)
	if errors.Is(err, ErrNone) {
		return r.Choose(ctx, log, name, o)
	}
	if err != nil {
		return nil, err
	}
	for _, dp := range all[1:] {
		dp.Close()
	}
	return all[0], nil
}

// Info describes the mode that Current would open. It looks at the node only for auto. The
// mode none lacks no algorithm.
func (r Registry) Info(ctx context.Context, log *slog.Logger, name string, o Options) (datapath.Info, error) {
	var dp datapath.Datapath
	switch name {
	case datapath.None:
		info := datapath.Info{Name: name}
		info.Capabilities.Algorithms = ^info.Capabilities.Algorithms
		return info, nil
	case datapath.Auto:
		current, err := r.Current(ctx, log, name, o)
		if err != nil {
			return datapath.Info{}, err
		}
		dp = current
	default:
		m, err := r.find(name)
		if err != nil {
			return datapath.Info{}, err
		}
		if dp, err = m.Open(o); err != nil {
			return datapath.Info{}, err
		}
	}
	defer dp.Close()
	return dp.Info(), nil
}
