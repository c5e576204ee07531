package inspect

import (
	"context"
	"errors"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/service"
)

// diff compares the kernel's table with the table of the API server's objects.
func diff(ctx context.Context, a *agent.Tool) (found output.Value, same bool, err error) {
	if a.Config.Mode == datapath.None {
		return nil, false, errors.New("--proxy-mode none carries no Services, so there is nothing to compare")
	}
	if err := nodeHere(ctx, a); err != nil {
		return nil, false, err
	}
	dp, err := modes.All().Current(ctx, a.Log, a.Config.Mode, a.Modes())
	if err != nil {
		return nil, false, err
	}
	defer dp.Close()
	want, err := a.Wanted(ctx, dp.Info())
	if err != nil {
		return nil, false, err
	}
	have, err := dp.Adopt(ctx)
	if err != nil {
		return nil, false, err
	}
	differ := difference{service.Compare(dp.Info().Name, have.Table, want.Table)}
	return differ, !differ.Any(), nil
}

// nodeHere returns an error on a machine that is no node: no agent runs, and no agent has left rules. There everything would
// be missing.
func nodeHere(ctx context.Context, a *agent.Tool) error {
	if !a.Config.Person {
		return nil // in the agent's pod
	}
	if _, err := status.Ask(ctx); !errors.Is(err, status.ErrNoAgent) {
		return nil
	}
	left, err := modes.All().Found(ctx, a.Modes())
	for _, dp := range left {
		dp.Close()
	}
	if err != nil || len(left) > 0 {
		return nil // the comparison says more
	}
	return errors.New("no fairway agent runs on this machine, so its kernel says nothing about a node [kubectl -n kube-system exec ds/fairway-agent -- fairway diff]")
}
