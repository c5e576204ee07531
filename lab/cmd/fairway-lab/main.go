// Command fairway-lab runs a real Kubernetes cluster on one machine: see package cluster. Under the name kubectl it
// runs kubectl.
//
//	fairway-lab up ──> child control-plane
//	               ├─> child init NODE ──> child kubelet NODE
//	               └─> …
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/cli"
	"github.com/fairway-net/fairway/internal/text"
	"github.com/fairway-net/fairway/lab/cluster"
)

// The linker sets version.
var version = "dev"

// At the start of a cluster, the garbage collector would use a tenth of the processors' time. So during the first
// period a process may grow to several times its live memory.
const growth, grown = 400, 30 * time.Second

func main() {
	usual := debug.SetGCPercent(growth)
	time.AfterFunc(grown, func() { debug.SetGCPercent(usual) })
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

// exitCode prints the error and returns the exit status. A command inside the lab has printed its own error, so
// exitCode only returns its status.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var inside cluster.Exited
	if errors.As(err, &inside) {
		return inside.Status
	}
	printError(os.Stderr, err)
	return 1
}

// printError prints the error, and its hint on a separate line. The lines of the error after the first are the end of
// logs, and printError prints them unchanged.
func printError(out io.Writer, err error) {
	first, more, _ := strings.Cut(err.Error(), "\n")
	what, hint := text.SplitHint(first)
	fmt.Fprintln(out, "error:", what)
	if more != "" {
		fmt.Fprintln(out, more)
	}
	if hint != "" {
		fmt.Fprintln(out, "hint:", hint)
	}
}

// forAll are the commands that need no root. kubectl checks itself whether it needs the lab.
var forAll = []string{"fairway-lab", "version", "list", "kubeconfig", "kubectl", "help", "completion", "bash", "zsh", "fish", "powershell",
	cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

// root returns the command line. unhandle restores the system's default for the signals that end a program.
func root(unhandle func()) *cobra.Command {
	lab := &cluster.Lab{}
	cmd := &cobra.Command{
		Use:           "fairway-lab",
		Short:         "A real Kubernetes cluster on one machine, whose nodes are network namespaces",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		// --name before a command is this program's flag, and flags after "kubectl" are kubectl's.
		TraverseChildren: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := lab.CheckName(); err != nil || slices.Contains(forAll, cmd.Name()) {
				return err
			}
			return cluster.CheckRoot()
		},
	}
	// Kubernetes' libraries add their own flags to every command's help.
	pflag.CommandLine.VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	// Kubernetes' libraries also define this flag, and cobra keeps the first definition.
	cmd.Flags().Bool("version", false, "print the version")
	cmd.PersistentFlags().StringVar(&lab.Name, "name", os.Getenv("FAIRWAY_LAB_NAME"),
		"`name` of the lab, when there is more than one (also $FAIRWAY_LAB_NAME)")
	cmd.AddCommand(upCommand(lab), downCommand(lab), listCommand(), statusCommand(lab), logsCommand(lab), kubeconfigCommand(lab),
		loadCommand(lab), nodeCommand(lab), clientCommand(lab), routerCommand(lab), edgeCommand(lab), faultCommand(lab), restartNodeCommand(lab), shellCommand(lab),
		addNodeCommand(lab), removeNodeCommand(lab), redeployCommand(lab), kubectlCommand(lab, unhandle), versionCommand(), childCommand())
	cli.Strict(cmd)
	return cmd
}
