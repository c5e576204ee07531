package inspect

import (
	"context"
	"errors"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/service"
)

// diff compares the kernel's table with the table of the API server's objects.
func diff(ctx context.Context, a *agent.Tool) (found output.Value, same bool, err error) {
	if a.Config.Mode == datapath.None {
		return nil, false, errors.New("--proxy-mode none carries no Services, so there is nothing to compare")
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
