package inspect

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/probe"
	"github.com/fairway-net/fairway/internal/path/remote"
)

// NewPathNode builds the hidden command `fairway path-node`, with which `fairway path` watches a node.
func NewPathNode(e command.Env) *cobra.Command {
	return &cobra.Command{
		Use:    "path-node",
		Hidden: true,
		Short:  "Watch this node for one probe packet: fairway path runs it",
		Long: `Watch this node for one probe packet: fairway path runs it.

Reads an order, one line of JSON, and then the lines "send" and "stop". Writes what the node sees of the
probe as JSON lines. It needs CAP_NET_ADMIN, listens nowhere, ends with its input and after 30 seconds at
most, and leaves nothing behind.`,
		Example: `  kubectl -n kube-system exec -i ds/fairway-agent -- fairway path-node < order.json`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if e.Stdin == nil {
				return errors.New("no input [write an order as one line of JSON]")
			}
			if err := probe.RemoveStale(); err != nil {
				return err
			}
			return remote.Serve(c.Context(), e.Stdin, e.Stdout, observe.Config{})
		},
	}
}
