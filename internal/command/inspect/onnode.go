package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
)

// onNodeTimeout limits a command in an agent's pod. A dump of a large node takes seconds.
const onNodeTimeout = time.Minute

// An onNode runs a command in the pod of another node's agent, by pods/exec.
type onNode struct {
	connection      kube.Connection
	node, namespace string
}

// flags are the flags that an onNode adds. The command in the pod does not get them.
func (o *onNode) flags(e command.Env) *pflag.FlagSet {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	command.AddConnection(e, f, &o.connection)
	f.StringVar(&o.node, "node", "", "Ask the agent of this node, by pods/exec: `name` (default this machine's kernel)")
	f.StringVar(&o.namespace, "agent-namespace", "kube-system", "With --node: `namespace` of the agents")
	return f
}

// add adds --node to c. c then runs in the pod of that node's agent, with the other flags that were given.
func (o *onNode) add(e command.Env, c *cobra.Command) {
	own := o.flags(e)
	c.Flags().AddFlagSet(own)
	here := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		var given []string
		var alone string // a flag that means nothing without --node
		c.Flags().Visit(func(f *pflag.Flag) {
			if own.Lookup(f.Name) == nil {
				given = append(given, "--"+f.Name+"="+f.Value.String())
			} else if alone == "" {
				alone = f.Name
			}
		})
		switch {
		case o.node != "":
			return o.run(c.Context(), e, slices.Concat([]string{"fairway", c.Name()}, given, args))
		case alone != "":
			return fmt.Errorf("--%s is for another node [add --node NAME]", alone)
		}
		return here(c, args)
	}
	if err := c.RegisterFlagCompletionFunc("node", command.CompleteNodes(&o.connection, &o.namespace)); err != nil {
		panic(err) // the flag does not exist
	}
}

func (o *onNode) run(ctx context.Context, e command.Env, command []string) error {
	ctx, cancel := context.WithTimeout(ctx, onNodeTimeout)
	defer cancel()
	agents, err := kube.ConnectAgents(o.connection, o.namespace)
	if err != nil {
		return err
	}
	pods, err := agents.List(ctx)
	if err != nil {
		return err
	}
	pod, err := kube.AgentOn(pods, o.node)
	if err != nil {
		return err
	}
	return agents.Exec(ctx, pod, command, strings.NewReader(""), e.Stdout)
}
