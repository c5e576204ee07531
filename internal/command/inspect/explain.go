package inspect

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/service"
)

// explain reads the API server and reports on packets to one Service, from one place or from all.
func explain(ctx context.Context, a *agent.Tool, subject, from string) (report service.Report, err error) {
	name, err := service.ParseName(subject)
	if err != nil {
		return report, err
	}
	origins, err := service.ParseOrigins(from)
	if err != nil {
		return report, fmt.Errorf("--from: %w", err)
	}
	mode, err := modes.All().Info(ctx, a.Log, a.Config.Mode, a.Modes())
	if err != nil {
		return report, err
	}
	want, err := a.Wanted(ctx, mode)
	if err != nil {
		return report, err
	}
	svc, ok := want.Objects.Service(name)
	if !ok {
		return report, fmt.Errorf("there is no Service %v that this proxy serves [is it labelled service.kubernetes.io/service-proxy-name?]", name)
	}
	return service.NewReport(svc, want.Objects.Slices(name), want.Node, want.Table.Entry(name), origins), nil
}
