package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/config"
	"github.com/fairway-net/fairway/internal/suggest"
)

// flagError adds to an error about a flag which one may be meant.
func flagError(c *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := suggest.Closest(name, names); near != "" {
		return fmt.Errorf("%w [did you mean --%s? See %s --help]", err, near, c.CommandPath())
	}
	return fmt.Errorf("%w [%s --help lists all flags]", err, c.CommandPath())
}

// usage is cobra's usage text with the flags in groups: forty in one list hide each other.
func usage(c *cobra.Command) error {
	out := c.OutOrStderr()
	fmt.Fprintf(out, "Usage:\n  %s\n", c.UseLine())
	if c.HasAvailableSubCommands() {
		fmt.Fprint(out, "\nCommands:\n")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(out, "  %-*s  %s\n", c.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if c.HasExample() {
		fmt.Fprintf(out, "\nExamples:\n%s\n", c.Example)
	}
	groups := map[string]*pflag.FlagSet{}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		group := config.Group(f.Name)
		if groups[group] == nil {
			groups[group] = pflag.NewFlagSet(group, pflag.ContinueOnError)
		}
		groups[group].AddFlag(f)
	})
	for _, group := range config.Groups() {
		if set := groups[group]; set != nil && set.HasAvailableFlags() {
			title := "Flags"
			if len(groups) > 1 {
				title = group
			}
			fmt.Fprintf(out, "\n%s:\n%s", title, set.FlagUsages())
		}
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(out, "\n%s COMMAND --help says more of a command.\n", c.CommandPath())
	}
	return nil
}
