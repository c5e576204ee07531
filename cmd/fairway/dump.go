package main

import (
	"errors"
	"fmt"
	"log/slog"

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
			var of *service.Name
			if only != "" {
				n, err := service.ParseName(only)
				if err != nil {
					return fmt.Errorf("--service: %w", err)
				}
				of = &n
			} else if objects {
				return errors.New("--objects is for one Service [add --service namespace/name]")
			}
			all, err := modes.All().Held(c.Context(), slog.New(slog.DiscardHandler), name, modes.Options{})
			if err != nil {
				return err
			}
			for _, dp := range all {
				defer dp.Close()
				if program {
					err = datapath.WriteProgram(e.stdout, dp)
				} else {
					err = datapath.WriteTable(c.Context(), e.stdout, dp, of, objects)
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
