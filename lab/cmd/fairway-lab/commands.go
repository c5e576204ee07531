package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apiversion "k8s.io/component-base/version"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/lab/cluster"
	"github.com/fairway-net/fairway/lab/fabric"
)

func statusCommand(lab *cluster.Lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "status",
		SuggestFor: []string{"info"},
		Short:      "Show what runs (exits 1 if a process or node is down)",
		Example: `  fairway-lab status
  fairway-lab status -o json`,
		Args: cobra.NoArgs,
	}
	format := formatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		report, err := lab.Status(cmd.Context())
		if report != nil {
			err = errors.Join(output.Write(cmd.OutOrStdout(), *format, report), err)
		}
		return err
	}
	return cmd
}

// formatFlag adds the flag -o.
func formatFlag(cmd *cobra.Command) *output.Format {
	format := output.Table
	cmd.Flags().VarP(&format, "output", "o", "`format`: table, json or yaml")
	if err := cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag does not exist
	}
	return &format
}

func kubeconfigCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig",
		Short:   "Print the path of the kubeconfig, for other clients on this machine",
		Example: "  export KUBECONFIG=$(fairway-lab kubeconfig)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := lab.Check(); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), lab.Kubeconfig())
			return nil
		},
	}
}

func loadCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:        "load IMAGE",
		SuggestFor: []string{"import"},
		Short:      "Bring an image into every node",
		Long: `Bring an image into every node: an archive (docker save, or an OCI layout in a tar), a directory with an OCI
layout, or the name of an image that this machine's docker, podman or containerd has.`,
		Example: `  fairway-lab load app.tar
  fairway-lab load example.com/app:v1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			start := time.Now()
			nodes, err := lab.Load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "loaded %s into %d nodes, %.1f s\n", args[0], nodes, time.Since(start).Seconds())
			return nil
		},
	}
}

func listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "list",
		SuggestFor: []string{"get", "ls", "clusters", "ps"},
		Short:      "List the labs on this machine",
		Example:    "  fairway-lab list -o json",
		Args:       cobra.NoArgs,
	}
	format := formatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		labs := cluster.List()
		if len(labs.Labs) == 0 && *format == output.Table {
			fmt.Fprintf(cmd.ErrOrStderr(), "No lab is up. %s starts one.\n", cluster.Lab{}.Command("up"))
			return nil
		}
		return output.Write(cmd.OutOrStdout(), *format, labs)
	}
	return cmd
}

func logsCommand(lab *cluster.Lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "logs [PART [NODE]]",
		SuggestFor: []string{"log", "export"},
		Short:      "Print the log of a part of the lab; without PART, which parts have one",
		Example: `  fairway-lab logs control-plane -f
  fairway-lab logs kubelet 1`,
		Args: cobra.MaximumNArgs(2),
	}
	follow := cmd.Flags().BoolP("follow", "f", false, "print also what comes, until interrupted")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			names, err := lab.LogNames()
			for _, name := range names {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return err
		}
		part := args[0]
		if len(args) == 2 {
			part += "-node-" + strings.TrimPrefix(args[1], "node-")
		}
		return lab.Log(cmd.Context(), part, *follow, cmd.OutOrStdout())
	}
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of its Kubernetes",
		Example: "  fairway-lab version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "fairway-lab %s\nKubernetes %s\n", version, apiversion.Get().GitVersion)
			return err
		},
	}
}

func nodeCommand(lab *cluster.Lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "node N -- CMD…",
		SuggestFor: []string{"exec", "run"},
		Short:      "Run a command on node N",
		Example: `  fairway-lab node 1 -- nft list table inet fairway
  fairway-lab node 2 -- tcpdump -ni eth0 port 80`,
		Args: cobra.MinimumNArgs(2),
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

func shellCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:        "shell N|client|router|edge",
		SuggestFor: []string{"ssh", "attach", "enter", "login"},
		Short:      "Open a shell on node N, on the client outside the cluster, on the router or the edge",
		Example: `  fairway-lab shell 2
  fairway-lab shell client`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeNodes(lab, "client", "router", "edge"),
		RunE: func(_ *cobra.Command, args []string) error {
			return lab.Shell(args[0])
		},
	}
}

func routerCommand(lab *cluster.Lab) *cobra.Command {
	return frontCommand(lab, fabric.Router, "the router of up --load-balancer bgp", "birdc show route", "ip route")
}

func edgeCommand(lab *cluster.Lab) *cobra.Command {
	return frontCommand(lab, fabric.Edge, "the load balancer of up --load-balancer edge", "fairway dump", "conntrack -L")
}

// frontCommand runs a command on the machine between the nodes and the client.
func frontCommand(lab *cluster.Lab, name, what string, examples ...string) *cobra.Command {
	for i, e := range examples {
		examples[i] = "  fairway-lab " + name + " -- " + e
	}
	cmd := &cobra.Command{
		Use:     name + " -- CMD…",
		Short:   "Run a command on " + what,
		Example: strings.Join(examples, "\n"),
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return lab.OnFront(name, args)
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func redeployCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:   "redeploy",
		Short: "Bring Fairway's image and manifests in again, after make image",
		Long: `Bring Fairway's image and manifests in again, as they are now, after "make image". The overlay of the lab stays what it
is, edited or not: /var/lib/fairway-lab…/overlay/kustomization.yaml.`,
		Example: "  make image && fairway-lab redeploy",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Redeploy(cmd.Context(), cluster.NewProgress(cmd.OutOrStdout()))
		},
	}
}

func clientCommand(lab *cluster.Lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "client -- CMD…",
		Short:   "Run a command on the client outside the cluster",
		Example: "  fairway-lab client -- curl http://192.168.49.2:30080/",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return lab.OnClient(args)
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}
