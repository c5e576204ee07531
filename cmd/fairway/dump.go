package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/service"
)

func newDump(e env) *cobra.Command {
	var program, objects bool
	var only, name string
	c := &cobra.Command{
		Use:   "dump",
		Short: "Show what the kernel of this node does for Services, read back from it",
		Args:  cobra.NoArgs,
		Example: `  fairway dump
  fairway dump --service default/backend-service
  fairway dump --service default/backend-service --objects
  fairway dump --proxy-mode iptables
  fairway dump --program       the constant ruleset`,
		RunE: func(c *cobra.Command, _ []string) error {
			if objects && only == "" {
				return errors.New("--objects is for one Service [add --service namespace/name]")
			}
			all, err := opened(c.Context(), name)
			if err != nil {
				return err
			}
			for _, dp := range all {
				defer dp.Close()
				if program {
					err = showProgram(e.stdout, dp)
				} else {
					err = showTable(c.Context(), e.stdout, dp, only, objects)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&program, "program", false, "print the program that the kernel runs, as nft text")
	c.Flags().StringVar(&only, "service", "", "only this Service: `namespace/name`")
	c.Flags().BoolVar(&objects, "objects", false, "with --service: also the kernel objects behind each frontend")
	c.Flags().StringVar(&name, "proxy-mode", datapath.Auto, "the rules of this mode: "+datapath.ModeNames()+"; auto: of all that are on this node")
	return c
}

// opened returns the datapaths of that mode, or of all whose rules are here.
func opened(ctx context.Context, name string) ([]datapath.Datapath, error) {
	if name != datapath.Auto {
		dp, err := modes.All().Choose(ctx, slog.New(slog.DiscardHandler), name, modes.Options{})
		if err != nil {
			return nil, fmt.Errorf("--proxy-mode: %w", err)
		}
		return []datapath.Datapath{dp}, nil
	}
	all, err := modes.All().Found(ctx, modes.Options{})
	if err == nil && len(all) == 0 {
		err = errors.New("no mode has rules on this node [is the agent running here?]")
	}
	return all, err
}

// showProgram prints the constant ruleset of a datapath that has one.
func showProgram(w io.Writer, dp datapath.Datapath) error {
	info := dp.Info()
	if info.Program == "" {
		return fmt.Errorf("mode %s has no constant program [leave out --program]", info.Name)
	}
	_, err := io.WriteString(w, info.Program)
	return err
}

// showTable prints what the kernel does, and which mode makes it do so.
func showTable(ctx context.Context, w io.Writer, dp datapath.Datapath, only string, objects bool) error {
	held, err := dp.Adopt(ctx)
	if err != nil {
		return err
	}
	table := held.Table
	if only != "" {
		if table, err = onlyService(table, only); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(w, "mode", dp.Info().Name); err != nil {
		return err
	}
	if _, err = table.WriteTo(w); err != nil || !objects {
		return err
	}
	for _, f := range table.Sorted() {
		if err := showObjects(ctx, w, dp, f); err != nil {
			return err
		}
	}
	return nil
}

// showObjects prints the kernel objects that make a frontend work.
func showObjects(ctx context.Context, w io.Writer, dp datapath.Datapath, f *service.Frontend) error {
	all, err := dp.Explain(ctx, f.Key())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%v %v\n", f.Key(), f.Service)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, o := range all {
		_, werr := fmt.Fprintf(tw, "  %s\t%s\t%s\n", o.Kind, o.Name, o.Text)
		err = errors.Join(err, werr)
	}
	return errors.Join(err, tw.Flush())
}

// onlyService returns the table of one Service.
func onlyService(t *service.Table, name string) (*service.Table, error) {
	n, err := service.ParsePortName(name)
	if err != nil {
		return nil, fmt.Errorf("--service: %w", err)
	}
	entry := t.Entry(n.Name)
	if entry == nil {
		return nil, fmt.Errorf("the kernel holds nothing for Service %v", n.Name)
	}
	return service.NewTable(t.Settings, entry.Frontends), nil
}
