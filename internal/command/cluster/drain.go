package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
)

// NewDrain builds `fairway drain`.
func NewDrain(e command.Env) *cobra.Command {
	var connection kube.Connection
	var scope command.LoadBalancerScope
	var undo, force bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move the addresses of load balancers off a node before its maintenance",
		Long: `Move the addresses of load balancers off a node before its maintenance, and wait until
other nodes announce them. It sets the label node.kubernetes.io/exclude-from-external-load-balancers,
which balancers outside the cluster heed too. Pods stay: kubectl drain is for them, and
kubectl cordon alone moves no address. Connections that are open through the node end when it
does. If no other node may announce an address, it changes nothing and names the Services.
It needs the rights to patch nodes, and to list what fairway status --load-balancers lists.`,
		Example: `  fairway drain node-2
  fairway drain node-2 --undo`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			d, err := loadbalancer.ConnectDrain(connection, scope.Namespace)
			if err != nil {
				return err
			}
			if !undo && !force {
				if err := refuseStranded(ctx, connection, scope, args[0]); err != nil {
					return err
				}
			}
			if err := d.Exclude(ctx, args[0], !undo); err != nil {
				return err
			}
			if undo {
				fmt.Fprintf(e.Stdout, "node %s takes addresses of load balancers again\n", args[0])
				return nil
			}
			err = d.Wait(ctx, args[0], !force, func(n int) {
				if n > 0 {
					fmt.Fprintf(e.Stdout, "node %s announces %d Service%s\n", args[0], n, map[bool]string{false: "s"}[n == 1])
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
	command.AddLoadBalancerScope(f, "namespace", &scope)
	f.BoolVar(&force, "force", false, "Also if no other node may announce an address")
	f.BoolVar(&undo, "undo", false, "Let the node have addresses again")
	f.DurationVar(&timeout, "timeout", time.Minute, "How long to wait until other nodes announce them")
	return c
}

// refuseStranded returns an error if the node announces an address that no other node may announce.
func refuseStranded(ctx context.Context, connection kube.Connection, scope command.LoadBalancerScope, node string) error {
	announced, err := loadbalancer.ConnectAnnounced(connection, scope.Namespace, scope.Class)
	if err != nil {
		return err
	}
	stranded, err := announced.Stranded(ctx, node)
	if err != nil || len(stranded) == 0 {
		return err
	}
	var names []string
	for _, s := range stranded {
		for _, name := range s.Services {
			names = append(names, fmt.Sprintf("%s (%s)", name, s.Addr))
		}
	}
	return fmt.Errorf("refused: no other node may announce %s [fairway status --load-balancers -o wide says why; --force drains the node, and their traffic ends]", strings.Join(names, ", "))
}
