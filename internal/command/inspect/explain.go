package inspect

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/output"
	"github.com/fairway-net/fairway/internal/service"
)

// NewExplain builds `fairway explain`.
func NewExplain(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "explain NAMESPACE/SERVICE",
		Short: "Say what becomes of packets to a Service on a node, and why each endpoint is used or not",
		Long: `Say what becomes of packets to a Service on a node, and why each endpoint is used or not.

Reads the API server once and decides as the agent does; the kernel is not asked (see
fairway dump and fairway diff for that). In the agent's pod it starts from the flags that
the agent runs with, and a flag given here wins. Elsewhere --hostname-override names the node.`,
		Example: `  fairway explain default/web
  fairway explain default/web --from outside
  fairway explain default/web -o json --kubeconfig ~/.kube/config --hostname-override node-2 --cluster-cidr 10.244.0.0/16`,
		Args: cobra.ExactArgs(1),
	}
	from := c.Flags().String("from", "", "only packets from a `place`: pod, node (itself), outside (the cluster)")
	format := output.Table
	c.Flags().VarP(&format, "output", "o", "table, wide, json or yaml")
	command.Complete(c, "output", output.Formats()...)
	command.Complete(c, "from", string(service.FromPod), string(service.FromNode), string(service.FromOutside))
	c.ValidArgsFunction = offerServices
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, args []string) error {
		name, err := service.ParseName(args[0])
		if err != nil {
			return err
		}
		origins, err := service.ParseOrigins(*from)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		report, err := explain(ctx, a, name, origins)
		if err != nil {
			return err
		}
		return output.Write(e.Stdout, format, report)
	})
	return c
}

// explain reads the API server and reports on one Service.
func explain(ctx context.Context, a *agent.Tool, name service.Name, from []service.Origin) (service.Report, error) {
	mode, err := modes.All().Info(ctx, a.Log, a.Config.Mode, a.Modes())
	if err != nil {
		return service.Report{}, err
	}
	want, err := a.Wanted(ctx, mode)
	if err != nil {
		return service.Report{}, err
	}
	svc, ok := want.Objects.Service(name)
	if !ok {
		return service.Report{}, fmt.Errorf("there is no Service %v that this proxy serves [is it labelled service.kubernetes.io/service-proxy-name?]", name)
	}
	return service.NewReport(svc, want.Objects.Slices(name), want.Node, want.Table.Entry(name), from), nil
}
