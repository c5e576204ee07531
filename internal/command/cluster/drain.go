package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
)

// NewDrain builds `fairway drain`.
func NewDrain(e command.Env) *cobra.Command {
	var connection kube.Connection
	var namespace string
	var undo bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move the addresses of load balancers off a node before its maintenance",
		Long: `Move the addresses of load balancers off a node before its maintenance, and wait until
others announce them. It sets the label node.kubernetes.io/exclude-from-external-load-balancers,
which balancers outside the cluster heed too. Pods stay: kubectl drain is for them, and
kubectl cordon alone moves no address. Connections that are open through the node end when it
does. It needs the rights to patch nodes and to list servicel2statuses
and servicebgpstatuses.`,
		Example: `  fairway drain node-2
  fairway drain node-2 --undo`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			d, err := loadbalancer.ConnectDrain(connection, namespace)
			if err != nil {
				return err
			}
			if err := d.Exclude(ctx, args[0], !undo); err != nil {
				return err
			}
			if undo {
				fmt.Fprintf(e.Stdout, "node %s takes addresses of load balancers again\n", args[0])
				return nil
			}
			err = d.Wait(ctx, args[0], func(n int) {
				if n > 0 {
					fmt.Fprintf(e.Stdout, "node %s announces %d Services\n", args[0], n)
				}
			})
			if err == nil {
				fmt.Fprintf(e.Stdout, "node %s announces no Service\n", args[0])
			}
			return err
		},
		ValidArgsFunction: command.CompleteNodes(&connection, new("kube-system")),
	}
	f := c.Flags()
	command.AddConnection(e, f, &connection)
	f.StringVar(&namespace, "namespace", "metallb-system", "`namespace` of the objects of metallb.io")
	f.BoolVar(&undo, "undo", false, "Let the node have addresses again")
	f.DurationVar(&timeout, "timeout", time.Minute, "How long to wait until the node announces nothing")
	return c
}
