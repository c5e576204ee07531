// Package path has `fairway path`: it predicts the way of a packet from the objects of a cluster, and says why.
//
//	FROM, TO ──────────────────────┐
//	API server, or manifests (-f) ─┼─→ path.Predict ─→ text or JSON, exit status
//	settings of the agents ────────┘
package path

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kube"
	kubepath "github.com/fairway-net/fairway/internal/kube/path"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/service"
)

// The exit statuses, next to 0. 2 is for a prediction that differs from an observation.
const (
	notDelivered = 1
	notProved    = 3
)

// A question has the flags.
type question struct {
	namespace, output, expect string
	files                     []string
	predict                   bool
}

// states are the values of --expect.
var states = []string{string(path.Delivered), string(path.Refused), string(path.Dropped), string(path.Unresolved), string(path.Sometimes), string(path.Accepted)}

// New builds `fairway path`.
func New(e command.Env) *cobra.Command {
	c := &cobra.Command{
		Use:        "path FROM TO",
		SuggestFor: []string{"trace", "traceflow", "why", "route"},
		Short:      "Say which way a packet goes from one place to another, and why",
		Long: `Say which way a packet goes from one place to another, and why.

FROM is pod/NAMESPACE/NAME, node/NAME, outside or outside:IP. TO is svc/NAMESPACE/NAME[:PORT], a
name, IP:PORT, node/NAME:PORT, pod/NAMESPACE/NAME[:PORT] or a URL. /UDP behind a port names a
protocol. A name without a namespace is in the namespace of -n, or of the kubeconfig's context.

Reads Services, EndpointSlices, pods, nodes and policies once, from the API server or from the
manifests of -f, and decides as the DNS, the agents and their policies do. It sends no packet and
asks no kernel. Each step has the object behind it; a fault has a sentence with its cause.

Exit status: 0 if the packet arrives, or ends as --expect says; 1 if it ends otherwise; 3 after an
error.`,
		Example: `  fairway path pod/shop/cart svc/shop/db
  fairway path pod/shop/cart http://web.shop
  fairway path outside:198.51.100.10 node/node-1:30080
  fairway path -n shop pod/cart svc/db --expect dropped
  kubectl get svc,endpointslices,pods,nodes,ns,netpol -A -o yaml | fairway path -f - pod/shop/cart db`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: offerPlaces,
	}
	var q question
	f := c.Flags()
	f.StringVarP(&q.namespace, "namespace", "n", "", "The `namespace` of names without one (default the kubeconfig's)")
	f.StringVarP(&q.output, "output", "o", "text", "The `format`: text or json")
	f.StringVar(&q.expect, "expect", "", "The `end` that makes the exit status 0: "+strings.Join(states, ", "))
	f.StringSliceVarP(&q.files, "filename", "f", nil, "Read the objects from these `files` of YAML or JSON, - for the input, not from the API server")
	f.BoolVar(&q.predict, "predict", false, "Only predict, and send no packet: what it does in any case so far")
	command.Complete(c, "output", "text", "json")
	command.Complete(c, "expect", states...)
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, args []string) error { return q.run(ctx, e, a, args) })
	c.RunE = command.ErrorStatus(notProved, c.RunE)
	return c
}

// offerPlaces offers the beginnings of places.
func offerPlaces(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	all := []cobra.Completion{"pod/", "node/", "outside"}
	if len(args) == 1 {
		all = []cobra.Completion{"svc/", "pod/", "node/"}
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func (q *question) run(ctx context.Context, e command.Env, a *agent.Tool, args []string) error {
	if q.output != "text" && q.output != "json" {
		return fmt.Errorf("%q is not a format [choose text or json]", q.output)
	}
	if q.expect != "" && !slices.Contains(states, q.expect) {
		return fmt.Errorf("--expect: %q is no end [choose one of %s]", q.expect, strings.Join(states, ", "))
	}
	if q.namespace == "" {
		q.namespace = a.Connection().Namespace()
	}
	from, err := path.ParseFrom(args[0], q.namespace)
	if err != nil {
		return err
	}
	to, err := path.ParseTo(args[1], q.namespace)
	if err != nil {
		return err
	}
	cluster, err := q.cluster(ctx, e, a)
	if err != nil {
		return err
	}
	found, err := path.Predict(cluster, path.Question{From: from, To: to})
	if err != nil {
		return err
	}
	if err := q.write(e.Stdout, found); err != nil {
		return err
	}
	return q.status(found.Verdict.Predicted)
}

// status returns the exit status of an end.
func (q *question) status(end path.State) error {
	if q.expect == "" && (end == path.Delivered || end == path.Accepted) || q.expect == string(end) {
		return nil
	}
	return command.ExitError(notDelivered)
}

func (q *question) write(w io.Writer, found *path.Path) error {
	if q.output == "json" {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(found)
	}
	return found.WriteText(w, isTerminal(w) && os.Getenv("NO_COLOR") == "")
}

// isTerminal reports whether people see the colors that are written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// cluster reads the objects, and adds the settings of the agents.
func (q *question) cluster(ctx context.Context, e command.Env, a *agent.Tool) (*path.Cluster, error) {
	objects, notEnforced, err := q.objects(ctx, e, a)
	if err != nil {
		return nil, err
	}
	c := objects.Cluster(func(n kube.Node) service.Node {
		f := a.Config.Node(n.Zone, n.Addrs, n.PodCIDRs)
		f.OwnAddrs = service.NewAddrSet(n.Addrs...)
		f.NodeAddrs = f.OwnAddrs
		return f
	})
	c.PodNetwork, c.NotEnforced = a.Config.PodNetwork, notEnforced
	if slices.Contains(datapath.Modes(), a.Config.Mode) {
		c.Mode = a.Config.Mode
	}
	return c, nil
}

// quick are the requests a second of one command, which reads a few pages and ends.
const quick = 50

// objects reads the files of -f, or the API server.
func (q *question) objects(ctx context.Context, e command.Env, a *agent.Tool) (*kubepath.Objects, string, error) {
	if len(q.files) > 0 {
		all, err := q.manifests(e)
		return all, "", err
	}
	connection := a.Connection()
	connection.QPS, connection.Burst = quick, 2*quick
	client, custom, err := kube.ConnectBoth(connection)
	if err != nil {
		return nil, "", err
	}
	notEnforced, err := a.PoliciesNotEnforced(ctx)
	if err != nil {
		return nil, "", err
	}
	all, err := kubepath.Read(ctx, client, custom)
	return all, notEnforced, err
}

// manifests reads the files of -f.
func (q *question) manifests(e command.Env) (*kubepath.Objects, error) {
	all := &kubepath.Objects{}
	for _, name := range q.files {
		in := e.Stdin
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			in = f
		}
		if err := all.Parse(in, q.namespace); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}
