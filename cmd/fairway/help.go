package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/command/agent/config"
)

// described returns a flag for help: without Go's type name, and without an empty list as default.
func described(f *pflag.Flag) *pflag.Flag {
	d := *f
	switch f.Value.Type() {
	case "int", "int32", "float32":
		d.Value = number{f.Value}
	case "stringToString":
		d.DefValue = ""
	}
	return &d
}

// A number is a flag's value with a word for its unit in help.
type number struct{ pflag.Value }

func (number) Type() string { return "number" }

// usage prints cobra's usage text with the flags in groups, because one list of forty flags is hard to read.
func usage(c *cobra.Command) error {
	out := c.OutOrStderr()
	line := c.UseLine()
	if c.HasAvailableSubCommands() {
		line = c.CommandPath() + " COMMAND"
	}
	fmt.Fprintf(out, "Usage:\n  %s\n", line)
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
		groups[group].AddFlag(described(f))
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
