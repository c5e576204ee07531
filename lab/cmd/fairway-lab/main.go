// Command fairway-lab runs a real Kubernetes cluster on one machine: see
// package cluster. Called by the name kubectl it is kubectl.
//
//	fairway-lab up ──> child control-plane
//	               ├─> child init NODE ──> child kubelet NODE
//	               └─> …
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/cluster"
)

// version is set by the linker.
var version = "dev"

func main() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		lab := cluster.Lab{Name: os.Getenv("FAIRWAY_LAB_NAME")}
		if err := lab.CheckName(); err != nil {
			os.Exit(exitCode(err))
		}
		os.Exit(kubectl(lab, os.Args[1:], os.Getenv("KUBECONFIG")))
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := root(stop).ExecuteContext(ctx)
	stop()
	os.Exit(exitCode(err))
}

// exitCode tells the user what went wrong. A command that ran inside the lab
// has told so itself: of that only the status is passed on.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var inside cluster.Exited
	if errors.As(err, &inside) {
		return inside.Status
	}
	fmt.Fprintln(os.Stderr, "fairway-lab:", err)
	return 1
}

// root is the command line. unhandle gives the signals that end a program back to the
// system's default.
func root(unhandle func()) *cobra.Command {
	lab := &cluster.Lab{}
	cmd := &cobra.Command{
		Use:           "fairway-lab",
		Short:         "A real Kubernetes cluster on one machine, whose nodes are network namespaces",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		// --name before a command is ours, what follows "kubectl" is not.
		TraverseChildren:           true,
		Args:                       cobra.ArbitraryArgs,
		RunE:                       noCommand,
		SuggestionsMinimumDistance: 2,
		PersistentPreRunE:          func(*cobra.Command, []string) error { return lab.CheckName() },
	}
	// Kubernetes' libraries put flags of theirs into every command's help.
	pflag.CommandLine.VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	// They have a flag of this name too: the first one stays.
	cmd.Flags().Bool("version", false, "print the version")
	cmd.PersistentFlags().StringVar(&lab.Name, "name", os.Getenv("FAIRWAY_LAB_NAME"),
		"`name` of the lab, when there is more than one (also $FAIRWAY_LAB_NAME)")
	cmd.AddCommand(upCommand(lab), downCommand(lab), listCommand(), statusCommand(lab), logsCommand(lab), kubeconfigCommand(lab),
		loadCommand(lab), nodeCommand(lab), clientCommand(lab), faultCommand(lab), restartNodeCommand(lab), shellCommand(lab),
		addNodeCommand(lab), removeNodeCommand(lab), redeployCommand(lab), kubectlCommand(lab, unhandle), versionCommand(), childCommand())
	return cmd
}

// noCommand is what the program does without a command that it knows.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	advice := "fairway-lab --help lists the commands"
	if close := cmd.SuggestionsFor(args[0]); len(close) > 0 {
		advice = "did you mean " + strings.Join(close, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q [%s]", args[0], advice)
}
