package inspect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/output"
	"github.com/fairway-net/fairway/internal/service"
)

// NewDump builds `fairway dump`.
func NewDump(e command.Env) *cobra.Command {
	var program bool
	var only, mode string
	var selection datapath.Selection
	format := output.Table
	c := &cobra.Command{
		Use:   "dump",
		Short: "Show what the kernel of this node does for Services, read back from it",
		Long: `Show what the kernel of this node does for Services, read back from it.

-o wide has a line for each endpoint, and more columns. Exit status: 0, or 1 for an error; that
no mode has rules here is an error.`,
		Args: cobra.NoArgs,
		Example: `  fairway dump
  fairway dump -n default -o wide
  fairway dump --service default/backend-service --objects
  fairway dump --proxy-mode iptables -o json
  fairway dump --program       the constant ruleset`,
		RunE: func(c *cobra.Command, _ []string) error {
			if only != "" {
				n, err := service.ParseName(only)
				if err != nil {
					return fmt.Errorf("--service: %w", err)
				}
				selection.Only = &n
			} else if selection.Objects {
				return errors.New("--objects is for one Service [add --service NAMESPACE/SERVICE]")
			}
			return dump(c.Context(), e, mode, program, selection, format)
		},
	}
	f := c.Flags()
	f.BoolVar(&program, "program", false, "Print the program that the kernel runs, as nft text")
	f.StringVar(&only, "service", "", "Only this Service: `namespace/name`")
	f.StringVarP(&selection.Namespace, "namespace", "n", "", "Only Services of this `namespace`")
	f.BoolVar(&selection.Objects, "objects", false, "With --service: also the kernel objects behind each address")
	f.StringVar(&mode, "proxy-mode", datapath.Auto, "Rules of this `mode`: "+datapath.ModeNames()+"; auto: every mode found on this node")
	f.VarP(&format, "output", "o", "table, wide, json or yaml")
	command.Complete(c, "proxy-mode", append(datapath.Modes(), datapath.Auto)...)
	command.Complete(c, "output", output.Formats()...)
	completeServices(c, "service")
	return c
}

// dump writes what the modes that are on this node do.
func dump(ctx context.Context, e command.Env, mode string, program bool, selection datapath.Selection, format output.Format) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may read the kernel's rules [run it as root (sudo fairway dump), or in the agent's pod]")
	}
	all, err := modes.All().Held(ctx, slog.New(slog.DiscardHandler), mode, modes.Options{})
	if err != nil {
		return err
	}
	var listing datapath.Listing
	for _, dp := range all {
		defer dp.Close()
		if program {
			if err := datapath.WriteProgram(e.Stdout, dp); err != nil {
				return err
			}
			continue
		}
		one, err := datapath.List(ctx, dp, selection)
		if err != nil {
			return err
		}
		listing.Modes = append(listing.Modes, one)
	}
	if program {
		return nil
	}
	return output.Write(e.Stdout, format, listing)
}

// completeServices offers the Services that the kernel of this node knows.
func completeServices(c *cobra.Command, flag string) {
	if err := c.RegisterFlagCompletionFunc(flag, offerServices); err != nil {
		panic(err) // there is no such flag
	}
}

func offerServices(c *cobra.Command, _ []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), command.CompletionTimeout)
	defer cancel()
	all, err := modes.All().Found(ctx, modes.Options{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, dp := range all {
		if held, err := dp.Adopt(ctx); err == nil {
			for e := range held.Table.Entries() {
				names = append(names, e.Name.String())
			}
		}
		dp.Close()
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}
