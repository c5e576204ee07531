// Package cli makes the errors for unknown commands, flags and arguments of the programs fairway and fairway-lab.
//
//	fairway dum        ──→ unknown command, did you mean fairway dump?
//	--clustercidr      ──→ unknown flag, did you mean --cluster-cidr?
//	completion bosh    ──→ unknown command, fairway completion --help lists the commands
//
// An unknown word is an error with a hint. It never prints help with exit status 0, which a script takes for success.
package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/text"
)

// Strict makes a program return errors for unknown words. The caller must have added all commands.
func Strict(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(flagError)
	strict(root)
}

func strict(c *cobra.Command) {
	for _, sub := range c.Commands() {
		strict(sub)
	}
	if c.HasSubCommands() && !c.Runnable() {
		c.Args, c.RunE = cobra.ArbitraryArgs, noCommand
	} else if c.Args != nil {
		c.Args = withUse(c.Args)
	}
}

// withUse adds the usage of the command to an error about the number of arguments.
func withUse(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		err := check(c, args)
		if err == nil {
			return nil
		}
		if _, rest, _ := strings.Cut(c.Use, " "); rest != "" {
			return fmt.Errorf("%w [write %s %s]", err, c.CommandPath(), strings.NewReplacer("[", "(", "]", ")").Replace(rest))
		}
		return fmt.Errorf("%w [%s takes no arguments]", err, c.CommandPath())
	}
}

// noCommand runs a command that has only subcommands.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	near := text.Closest(args[0], names)
	for _, sub := range c.Commands() {
		if slices.Contains(sub.SuggestFor, args[0]) { // its name in another tool
			near = sub.Name()
		}
	}
	if near != "" {
		return fmt.Errorf("unknown command %q [did you mean %s %s?]", args[0], c.CommandPath(), near)
	}
	return fmt.Errorf("unknown command %q [%s --help lists the commands]", args[0], c.CommandPath())
}

// flagError adds a similar flag to an error about an unknown one.
func flagError(c *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	if near := text.Closest(name, FlagNames(c)); near != "" {
		return fmt.Errorf("%w [did you mean --%s? See %s --help]", err, near, c.CommandPath())
	}
	return fmt.Errorf("%w [%s --help lists all flags]", err, c.CommandPath())
}

// FlagNames returns the names of a command's own flags.
func FlagNames(c *cobra.Command) (names []string) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			names = append(names, f.Name)
		}
	})
	return names
}
