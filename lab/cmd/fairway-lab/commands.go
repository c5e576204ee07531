package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/lab/cluster"
)

func statusCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs; exit status 1 if the cluster is not whole",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Status(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func kubeconfigCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the kubeconfig: export KUBECONFIG=$(fairway-lab kubeconfig)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !lab.Exists() {
				return cluster.ErrNoLab
			}
			fmt.Fprintln(cmd.OutOrStdout(), lab.Kubeconfig())
			return nil
		},
	}
}

func loadCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:   "load IMAGE.tar",
		Short: "Bring an image archive into every node",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return lab.Load(cmd.Context(), args[0])
		},
	}
}

func nodeCommand(lab *cluster.Lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node N -- CMD…",
		Short: "Run a command on node N",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return errors.New("no command: fairway-lab node N -- CMD")
			}
			return lab.OnNode(args[0], argv)
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func clientCommand(lab *cluster.Lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "client -- CMD…",
		Short: "Run a command on the client outside the cluster",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return lab.OnClient(args)
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}
