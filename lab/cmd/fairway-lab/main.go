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

// version is set by the linker.
var version = "dev"

// At the start of a cluster the garbage collector would take a tenth of the processors' time, so a process may grow
// to several times what it uses, until it has run for this long.
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
	printError(os.Stderr, err)
	return 1
}

// printError writes what is wrong, and on a line of its own what to do. What an error says below its first
// line is the end of logs, and stays as it is.
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

// forAll are the commands that users may run who are not root; kubectl looks itself whether it needs the lab.
var forAll = []string{"fairway-lab", "version", "list", "kubeconfig", "kubectl", "help", "completion", "bash", "zsh", "fish", "powershell",
	cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}

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
		TraverseChildren: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := lab.CheckName(); err != nil || slices.Contains(forAll, cmd.Name()) {
				return err
			}
			return cluster.CheckRoot()
		},
	}
	// Kubernetes' libraries put flags of theirs into every command's help.
	pflag.CommandLine.VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	// They have a flag of this name too: the first one stays.
	cmd.Flags().Bool("version", false, "print the version")
	cmd.PersistentFlags().StringVar(&lab.Name, "name", os.Getenv("FAIRWAY_LAB_NAME"),
		"`name` of the lab, when there is more than one (also $FAIRWAY_LAB_NAME)")
	cmd.AddCommand(upCommand(lab), downCommand(lab), listCommand(), statusCommand(lab), logsCommand(lab), kubeconfigCommand(lab),
		loadCommand(lab), nodeCommand(lab), clientCommand(lab), routerCommand(lab), edgeCommand(lab), faultCommand(lab), restartNodeCommand(lab), shellCommand(lab),
		addNodeCommand(lab), removeNodeCommand(lab), redeployCommand(lab), kubectlCommand(lab, unhandle), versionCommand(), childCommand())
	cli.Strict(cmd)
	return cmd
}
