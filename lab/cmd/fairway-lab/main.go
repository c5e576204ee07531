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
	"os/exec"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/cluster"
)

// version is set by the linker.
var version = "dev"

func main() {
	if filepath.Base(os.Args[0]) == "kubectl" {
		os.Exit(kubectl(cluster.Lab{Name: os.Getenv("FAIRWAY_LAB_NAME")}, os.Args[1:], os.Getenv("KUBECONFIG")))
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	os.Exit(exitCode(err))
}

// exitCode tells the user what went wrong. A command that ran inside the lab
// has told so itself: of that only the status is passed on.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var inside *exec.ExitError
	if errors.As(err, &inside) {
		return max(inside.ExitCode(), 1)
	}
	fmt.Fprintln(os.Stderr, "fairway-lab:", err)
	return 1
}

func root() *cobra.Command {
	lab := &cluster.Lab{}
	cmd := &cobra.Command{
		Use:           "fairway-lab",
		Short:         "A real Kubernetes cluster on one machine, whose nodes are network namespaces",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		// --name before a command is ours, what follows "kubectl" is not.
		TraverseChildren: true,
	}
	// Kubernetes' libraries have a flag of this name too: the first one stays.
	cmd.Flags().Bool("version", false, "print the version")
	cmd.PersistentFlags().StringVar(&lab.Name, "name", os.Getenv("FAIRWAY_LAB_NAME"),
		"name of the lab, when there is more than one (also $FAIRWAY_LAB_NAME)")
	cmd.AddCommand(upCommand(lab), downCommand(lab), statusCommand(lab), kubeconfigCommand(lab), loadCommand(lab),
		nodeCommand(lab), clientCommand(lab), kubectlCommand(lab), childCommand())
	return cmd
}
