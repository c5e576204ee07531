package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/lab/cluster"
	"github.com/fairway-net/fairway/lab/fabric"
)

func faultCommand(lab *cluster.Lab) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault node N|control-plane|router|edge kill|pause|partition|link-down|heal",
		Short: "Break a machine of the lab, or heal it",
		Long: `Break a machine of the lab, or heal it. Faults of a machine add up until it is healed.

  kill        power off; what its kernel held is gone, its disk stays
  pause       all its processes stand still; its kernel still forwards packets
  partition   its packets are dropped on the switch, its link stays up
  link-down   it loses its carrier
  heal        undo all of these

The router of up --load-balancer bgp, and the edge of --load-balancer edge, take kill and pause, of their process
alone: its kernel forwards on.`,
		Example: `  fairway-lab fault node 2 kill
  fairway-lab fault node 2 partition --from control-plane
  fairway-lab fault node 2 partition --one-way out
  fairway-lab fault control-plane pause
  fairway-lab fault node 2 heal`,
	}
	var cut cluster.Cut
	cmd.Flags().StringSliceVar(&cut.From, "from", nil, "partition only from these `machines`: node numbers, control-plane")
	cmd.Flags().StringVar(&cut.OneWay, "one-way", "", "partition only packets that come `in` to the machine, or go out of it: in, out")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && args[0] == "node" {
			args = args[1:]
		}
		if len(args) != 2 {
			return errors.New("name a machine and a fault [" + lab.Command("fault node 2 pause") + "]")
		}
		f := cluster.Fault(args[1])
		if !slices.Contains(cluster.Faults, f) {
			return fmt.Errorf("unknown fault %q [choose one of kill, pause, partition, link-down, heal]", f)
		}
		if f != cluster.Partition && (len(cut.From) > 0 || cut.OneWay != "") {
			return errors.New("--from and --one-way are for the fault partition")
		}
		if !slices.Contains([]string{fabric.Both, fabric.In, fabric.Out}, cut.OneWay) {
			return fmt.Errorf("--one-way %q [in or out]", cut.OneWay)
		}
		return lab.Fault(cmd.Context(), strings.TrimSpace(args[0]), f, cut, cluster.NewProgress(cmd.OutOrStdout()))
	}
	return cmd
}

func addNodeCommand(lab *cluster.Lab) *cobra.Command {
	return &cobra.Command{
		Use:     "add-node",
		Example: "  fairway-lab add-node",
		Short:   "Add a node, and wait until it is Ready",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.AddNode(cmd.Context(), cluster.NewProgress(cmd.OutOrStdout()))
		},
	}
}

func removeNodeCommand(lab *cluster.Lab) *cobra.Command {
	c := oneNodeCommand(lab, "remove-node", "Take a node away for good, without a warning", cluster.Lab.RemoveNode)
	c.Example = "  fairway-lab kubectl drain node-2 --ignore-daemonsets && fairway-lab remove-node 2"
	return c
}

func restartNodeCommand(lab *cluster.Lab) *cobra.Command {
	c := oneNodeCommand(lab, "restart-node", "Reboot a node: cut its power, start it again, and wait until it is Ready", cluster.Lab.RestartNode)
	c.Example = "  fairway-lab restart-node 2"
	return c
}

// oneNodeCommand is a command on the node that its argument names. It dereferences lab when it runs, because the flag
// --name is not parsed before.
func oneNodeCommand(lab *cluster.Lab, use, short string, do func(cluster.Lab, context.Context, string, *cluster.Progress) error) *cobra.Command {
	return &cobra.Command{
		Use:               use + " N",
		Short:             short,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeNodes(lab),
		RunE: func(cmd *cobra.Command, args []string) error {
			return do(*lab, cmd.Context(), args[0], cluster.NewProgress(cmd.OutOrStdout()))
		},
	}
}

// completeNodes completes the first argument with the names of the lab's nodes and the words in more.
func completeNodes(lab *cluster.Lab, more ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return append(lab.NodeNames(), more...), cobra.ShellCompDirectiveNoFileComp
	}
}
