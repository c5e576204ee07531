package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/service"
)

func newDump(e env) *cobra.Command {
	var program bool
	var only string
	c := &cobra.Command{
		Use:   "dump",
		Short: "Show what the kernel of this node does for Services, read back from it",
		Args:  cobra.NoArgs,
		Example: `  fairway dump
  fairway dump --service default/backend-service
  fairway dump --program       the constant ruleset`,
		RunE: func(c *cobra.Command, _ []string) error {
			dp, err := nftables.New(nftables.Config{})
			if err != nil {
				return err
			}
			defer dp.Close()
			if program {
				text, err := dp.Program()
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(e.stdout, text)
				return err
			}
			table, err := dp.Dump(c.Context())
			if err != nil {
				return err
			}
			if only != "" {
				if table, err = onlyService(table, only); err != nil {
					return err
				}
			}
			_, err = table.WriteTo(e.stdout)
			return err
		},
	}
	c.Flags().BoolVar(&program, "program", false, "print the program that the kernel runs, as nft text")
	c.Flags().StringVar(&only, "service", "", "only this Service: `namespace/name`")
	return c
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
