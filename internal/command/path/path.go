// Package path has `fairway path`: it predicts the way of a packet from the objects of a cluster, says why, and sends a
// probe to prove it.
//
//	FROM, TO ──────────────────────┐
//	API server, or manifests (-f) ─┼─→ path.Predict ─→ remote.Probe ─→ path.Compare ─→ text or JSON, exit status
//	settings of the agents ────────┘                     pods/exec
package path

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kube"
	kubepath "github.com/fairway-net/fairway/internal/kube/path"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/service"
)

// The exit statuses, next to 0.
const (
	notDelivered = 1
	differs      = 2 // the probe did not go as predicted
	notProved    = 3 // an error, or no probe
)

// A question has the flags.
type question struct {
	namespace, output, expect string
	files                     []string
	predict, verbose, each    bool
	live                      bool
	wait                      time.Duration
}

// states are the values of --expect.
var states = []string{string(path.Delivered), string(path.Refused), string(path.Dropped), string(path.Unresolved), string(path.Sometimes), string(path.Accepted)}

// formats are the values of -o. wide is text with --verbose, and svg a picture.
var formats = []string{"text", "wide", "json", "yaml", "svg"}

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
manifests of -f, and decides as the DNS, the agents and their policies do. Then one probe goes from
FROM to TO, and the agents on its way say what their kernels did with it: this needs the right to
create pods/exec in kube-system. The probe is one SYN in the pod's name, so that no server accepts a
connection, or one datagram. Nothing is left on the nodes. --predict sends no packet.

Exit status: 0 if the packet arrives, or ends as --expect says; 1 if it ends otherwise; 2 if the
probe did not go as predicted; 3 if it is not proved, or after an error.`,
		Example: `  fairway path pod/shop/cart svc/shop/db
  fairway path pod/shop/cart http://web.shop
  fairway path outside:198.51.100.10 node/node-1:30080
  fairway path -n shop pod/cart svc/db --expect dropped
  kubectl get svc,endpointslices,pods,nodes,ns,netpol -A -o yaml | fairway path -f - pod/shop/cart db`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: command.CompleteObjects(e, places),
	}
	var q question
	f := c.Flags()
	f.StringVarP(&q.namespace, "namespace", "n", "", "The `namespace` of names without one (default the kubeconfig's)")
	f.StringVarP(&q.output, "output", "o", "text", "The `format`: "+strings.Join(formats, ", "))
	f.StringVar(&q.expect, "expect", "", "The `end` that makes the exit status 0: "+strings.Join(states, ", "))
	f.StringSliceVarP(&q.files, "filename", "f", nil, "Read the objects from these `files` of YAML or JSON, - for the input, not from the API server")
	f.BoolVar(&q.predict, "predict", false, "Only predict, and send no packet")
	f.BoolVar(&q.each, "each", false, "Send probes until every endpoint of the Service was seen, at most 64 in a minute")
	f.BoolVar(&q.live, "live", false, "Send nothing, and follow the first new connection of FROM itself to TO")
	f.DurationVar(&q.wait, "wait", 10*time.Second, "How long --live waits for the connection, at most 30s")
	c.MarkFlagsMutuallyExclusive("predict", "each", "live")
	f.BoolVarP(&q.verbose, "verbose", "v", false, "Show the rules that judged the packet on each node")
	command.Complete(c, "output", formats...)
	command.Complete(c, "expect", states...)
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, args []string) error {
		return q.run(ctx, c.Context(), e, a, args)
	})
	c.RunE = command.ErrorStatus(notProved, c.RunE)
	return c
}

// places are the ways to write FROM, and TO after it.
func places(args []string) []command.Completion {
	pods := command.Completion{Prefix: "pod/", Resource: "pods", Bare: true}
	nodes := command.Completion{Prefix: "node/", Resource: "nodes"}
	switch len(args) {
	case 0:
		return []command.Completion{pods, nodes, {Prefix: "outside"}}
	case 1:
		return []command.Completion{{Prefix: "svc/", Resource: "services", Bare: true}, pods, nodes}
	}
	return nil
}

// run answers the question. ctx bounds the requests to the API server, and whole is the command's own.
func (q *question) run(ctx, whole context.Context, e command.Env, a *agent.Tool, args []string) error {
	if !slices.Contains(formats, q.output) {
		return fmt.Errorf("%q is not a format [choose one of %s]", q.output, strings.Join(formats, ", "))
	}
	if q.expect != "" && !slices.Contains(states, q.expect) {
		return fmt.Errorf("--expect: %q is no end [choose one of %s]", q.expect, strings.Join(states, ", "))
	}
	if q.wait < time.Second || q.wait > trace.MaxWatch {
		return fmt.Errorf("--wait: %v is not possible [choose 1s to %v]", q.wait, trace.MaxWatch)
	}
	if len(q.files) > 0 && (q.each || q.live) {
		return errors.New("--filename: files have no cluster to watch [leave out --each and --live]")
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
	cluster, err := q.cluster(ctx, e, a, from.Kind == "Outside")
	if err != nil {
		return err
	}
	ask := path.Question{From: from, To: to}
	found, err := path.Predict(cluster, ask)
	if err != nil {
		return err
	}
	if !q.predict && len(q.files) == 0 {
		found = q.prove(ctx, whole, a, cluster, ask, found)
	}
	if err := q.write(e.Stdout, found); err != nil {
		return err
	}
	return q.status(found)
}

// prove sends the probe. A person who may not list the agents gets the prediction, unproved.
func (q *question) prove(ctx, whole context.Context, a *agent.Tool, cluster *path.Cluster, ask path.Question, found *path.Path) *path.Path {
	p, err := newProber(ctx, a, cluster, ask)
	if err != nil {
		found.NotProved = oneLine(err)
		return found
	}
	switch {
	case q.each:
		return p.each(whole, found)
	case q.live:
		return p.live(whole, found, q.wait)
	}
	return p.prove(whole, found)
}

// status returns the exit status of a path.
func (q *question) status(found *path.Path) error {
	v := found.Verdict
	end := v.Predicted
	switch {
	case found.NotProved != "":
		return command.ExitError(notProved)
	case v.Agree != nil && !*v.Agree:
		return command.ExitError(differs)
	case v.Observed != "" && v.Predicted != path.Sometimes:
		end = v.Observed
	}
	if q.expect == "" && (end == path.Delivered || end == path.Accepted) || q.expect == string(end) {
		return nil
	}
	return command.ExitError(notDelivered)
}

func (q *question) write(w io.Writer, found *path.Path) error {
	switch q.output {
	case "json", "yaml":
		return output.Write(w, output.Format(q.output), tabled{found})
	case "svg":
		return found.WriteSVG(w)
	}
	return found.WriteText(w, path.Style{Color: isTerminal(w) && os.Getenv("NO_COLOR") == "", Rules: q.verbose || q.output == "wide"})
}

// tabled is a path that package output writes as JSON or YAML.
type tabled struct{ *path.Path }

// WriteTable implements output.Value.
func (t tabled) WriteTable(w io.Writer, wide bool) error {
	return t.WriteText(w, path.Style{Rules: wide})
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

// cluster reads the objects, and adds the settings of the agents, and for a client outside what the speakers announce.
func (q *question) cluster(ctx context.Context, e command.Env, a *agent.Tool, outside bool) (*path.Cluster, error) {
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
	if outside && len(q.files) == 0 {
		c.Announced = announcements(ctx, a.Connection())
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
