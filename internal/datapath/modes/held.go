package modes

import (
	"context"
	"errors"
	"log/slog"

	"github.com/fairway-net/fairway/internal/datapath"
)

// OpenHere opens the named mode; for auto, all modes that have rules on this node. A named mode is opened even if it
// has no rules here. The caller closes the datapaths.
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

// ErrNone says that no mode has rules.
var ErrNone = errors.New("no mode has rules on this node [is the agent running here?]")

// Current opens the mode that the agent with that --proxy-mode runs or would run. For auto this is the mode that has
// rules on this node, or else the best mode.
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

// Info describes the mode that Current would open. It examines the node only for auto. Mode none has all algorithms.
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
