package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/service"
)

func newExplain(e env) *cobra.Command {
	c := &cobra.Command{
		Use:   "explain NAMESPACE/SERVICE",
		Short: "Say what becomes of packets to a Service on a node, and why each endpoint is used or not",
		Long: `Say what becomes of packets to a Service on a node, and why each endpoint is used or not.

Reads the API server once and decides as the agent does; the kernel is not asked (see
fairway dump and fairway diff for that). Takes the agent's flags; in the agent's pod,
without any, those that the agent runs with. Elsewhere --hostname-override names the node.`,
		Example: `  fairway explain default/web
  fairway explain default/web --from outside
  fairway explain default/web -o json --kubeconfig ~/.kube/config --hostname-override node-2 --cluster-cidr 10.244.0.0/16`,
		Args: cobra.ExactArgs(1),
	}
	from := c.Flags().String("from", "", "only packets from a `place`: pod, node (itself), outside (the cluster)")
	output := c.Flags().StringP("output", "o", "table", "`format`: table or json")
	asAgent(c, e, func(ctx context.Context, a *agent, args []string) error {
		name, err := serviceName(args[0])
		if err != nil {
			return err
		}
		origins, err := parseFrom(*from)
		if err != nil {
			return err
		}
		if *output != "table" && *output != "json" {
			return fmt.Errorf("--output: %q is not a format [choose table or json]", *output)
		}
		report, err := a.explain(ctx, name, origins)
		if err != nil {
			return err
		}
		return writeReport(e.stdout, report, *output)
	})
	return c
}

// serviceName reads NAMESPACE/SERVICE.
func serviceName(text string) (service.Name, error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.ContainsAny(name, "/:") {
		return service.Name{}, fmt.Errorf("%q does not name a Service [write NAMESPACE/SERVICE]", text)
	}
	return service.Name{Namespace: namespace, Name: name}, nil
}

func parseFrom(text string) ([]service.Origin, error) {
	switch all := service.Origins(); {
	case text == "":
		return all, nil
	case slices.Contains(all, service.Origin(text)):
		return []service.Origin{service.Origin(text)}, nil
	}
	return nil, fmt.Errorf("--from: %q is not a place [choose pod, node or outside]", text)
}

// explain reads the API server and reports on one Service.
func (a *agent) explain(ctx context.Context, name service.Name, from []service.Origin) (service.Report, error) {
	dp, err := a.capable(ctx)
	if err != nil {
		return service.Report{}, err
	}
	if dp != nil {
		defer dp.Close()
	}
	want, err := a.wanted(ctx, dp)
	if err != nil {
		return service.Report{}, err
	}
	svc, ok := want.objects.Service(name)
	if !ok {
		return service.Report{}, fmt.Errorf("there is no Service %v that this proxy serves [is it labelled service.kubernetes.io/service-proxy-name?]", name)
	}
	return service.NewReport(svc, want.objects.Slices(name), want.node, want.table.Entry(name), from), nil
}

// capable returns the datapath that the agent's flags name, for what it says of its
// capabilities. Only for auto it looks at the node. Nil: no mode is chosen.
func (a *agent) capable(ctx context.Context) (datapath.Datapath, error) {
	switch a.cfg.Mode {
	case datapath.None:
		return nil, nil
	case datapath.Auto:
		return a.held(ctx)
	}
	for _, m := range modes.All() {
		if m.Name == a.cfg.Mode {
			return m.Open(a.modeOptions())
		}
	}
	return nil, nil
}

func writeReport(w io.Writer, r service.Report, format string) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	_, err := r.WriteTo(w)
	return err
}
