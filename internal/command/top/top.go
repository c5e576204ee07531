// Package top has `fairway top`: it asks the agents of the nodes for the connections of Services, second by second.
//
//	fairway top ── pods/exec ──→ fairway top-node on each node: conntrack, counters of the rules
//	     └── top.View ──→ the screen, or a table or JSON at each interval
package top

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

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/flow/top"
	"github.com/fairway-net/fairway/internal/kube"
)

// flags are those of the command.
type flags struct {
	connection kube.Connection
	agents     string // their namespace
	namespace  string
	everywhere bool
	sort       string
	filter     string
	interval   time.Duration
	once       bool
	gateways   bool
	nodes      []string
	format     output.Format
}

// The bounds of --interval.
const (
	leastInterval = 500 * time.Millisecond
	mostInterval  = 10 * time.Second // a node ends after 30 seconds without a question
)

// New builds `fairway top`.
func New(e command.Env) *cobra.Command {
	q := flags{format: output.Table}
	c := &cobra.Command{
		Use:        "top [service/NAME]",
		SuggestFor: []string{"traffic", "connections", "watch"},
		Short:      "Show the traffic of Services, second by second",
		Long: `Show the traffic of Services, second by second: open connections, new ones, bytes, and packets
that were rejected or dropped. With a Service, show its endpoints.

Reads conntrack and the counters of the rules on each node, only while it runs. A connection counts
on the node that translates it. Bytes need net.netfilter.nf_conntrack_acct=1 on the nodes. On a
terminal it is a screen; its keys are below the table. Elsewhere it prints a table at each interval.

With --gateways, show the requests of the gateway's routes, from the metrics of its pods.

Needs the rights to list nodes and pods, and to create pods/exec in the agents' namespace; with
--gateways, to list pods and get pods/proxy. It asks at most 64 nodes or pods.`,
		Example: `  fairway top -A
  fairway top -n shop service/web
  fairway top -A --once --sort new
  fairway top -A --once -o json
  fairway top -A --node node-1,node-2
  fairway top -A --gateways`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return q.run(c.Context(), e, args) },
	}
	f := c.Flags()
	command.AddConnection(e, f, &q.connection)
	f.StringVarP(&q.namespace, "namespace", "n", "", "Services of this `namespace` (default the kubeconfig's)")
	f.BoolVarP(&q.everywhere, "all-namespaces", "A", false, "Services of all namespaces")
	f.StringVar(&q.sort, "sort", string(top.ByConnections), "The largest `figure` first: "+strings.Join(top.Sorts(), ", "))
	f.StringVar(&q.filter, "filter", "", "Only rows whose name has this `text`")
	f.DurationVar(&q.interval, "interval", time.Second, "Time between two samples, 500ms to 10s")
	f.BoolVar(&q.once, "once", false, "Print one table, of two samples, and end")
	f.BoolVar(&q.gateways, "gateways", false, "Show the routes of the gateway instead: requests, errors, time")
	f.StringSliceVar(&q.nodes, "node", nil, "Ask only these nodes: `names`")
	f.StringVar(&q.agents, "agent-namespace", "kube-system", "`namespace` of the agents")
	f.VarP(&q.format, "output", "o", "table, wide, json or yaml")
	c.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	c.ValidArgsFunction = command.CompleteObjects(e, func(args []string) []command.Completion {
		if len(args) > 0 {
			return nil
		}
		return []command.Completion{{Prefix: "service/", Resource: "services", Bare: true}}
	})
	command.Complete(c, "output", output.Formats()...)
	command.Complete(c, "sort", top.Sorts()...)
	if err := c.RegisterFlagCompletionFunc("node", command.CompleteNodes(&q.connection, &q.agents)); err != nil {
		panic(err) // the flag does not exist
	}
	return c
}

// query checks the flags and arguments.
func (q *flags) query(args []string) (query top.Query, err error) {
	if query.Sort, err = top.ParseSort(q.sort); err != nil {
		return query, err
	}
	if q.interval < leastInterval || q.interval > mostInterval {
		return query, fmt.Errorf("--interval: %v is not possible [choose %v to %v]", q.interval, leastInterval, mostInterval)
	}
	if q.gateways && (len(args) > 0 || len(q.nodes) > 0) {
		return query, errors.New("--gateways shows the routes of all gateway pods [leave out the Service and --node]")
	}
	query.Filter = q.filter
	if query.Namespace = q.namespace; query.Namespace == "" && !q.everywhere {
		query.Namespace = q.connection.Namespace()
	}
	if len(args) == 0 {
		return query, nil
	}
	query.Service, err = parseService(args[0], query.Namespace)
	return query, err
}

// parseService reads service/NAME, svc/NAMESPACE/NAME, NAMESPACE/NAME or NAME.
func parseService(text, namespace string) (api.Name, error) {
	name := text
	for _, kind := range []string{"service/", "services/", "svc/"} {
		if rest, ok := strings.CutPrefix(text, kind); ok {
			name = rest
		}
	}
	if strings.Contains(name, "/") {
		return api.ParseName(name)
	}
	if namespace == "" {
		return api.Name{}, fmt.Errorf("%q names a Service without a namespace [write NAMESPACE/SERVICE, or give -n]", text)
	}
	if name == "" {
		return api.Name{}, fmt.Errorf("%q does not name a Service [write service/NAME]", text)
	}
	return api.Name{Namespace: namespace, Name: name}, nil
}

func (q *flags) run(ctx context.Context, e command.Env, args []string) error {
	query, err := q.query(args)
	if err != nil {
		return err
	}
	connect := q.connect
	if q.gateways {
		connect = q.connectGateways
	}
	s, err := connect(ctx)
	if err != nil {
		return err
	}
	s.query = query
	s.asker.follow(query.Service)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.asker.run(ctx, s.ask)
	}()
	defer func() {
		cancel()
		<-done
	}()
	switch {
	case q.once:
		return q.printOnce(ctx, e, s)
	case isTerminal(e.Stdin) && isTerminal(e.Stdout) && (q.format == output.Table || q.format == output.Wide):
		return runScreen(ctx, e, s, q.format == output.Wide)
	}
	return q.print(ctx, e, s)
}

// A session is one run of `fairway top`: of the nodes, or of the gateway's pods.
type session struct {
	view   *top.View
	routes *top.RouteView // nil: the session is of the nodes
	asker  *asker
	query  top.Query
	ask    []string // the nodes or pods that are asked
	notes  []string // that hold for the whole session
}

// take adds an answer to the View.
func (s *session) take(a answer) {
	switch {
	case s.routes != nil && a.err != nil:
		s.routes.Fail(a.node, a.at, a.err.Error())
	case s.routes != nil:
		s.routes.Add(a.node, a.routes)
	case a.err != nil:
		s.view.Fail(a.node, a.at, a.err.Error())
	default:
		s.view.Add(a.node, a.at, a.sample, a.endpointsOf)
	}
}

// A frame is what is shown at one time.
type frame struct {
	output.Value
	services *top.Frame // nil: routes
	routes   *top.RouteFrame
	at       time.Time
	answered int
	notes    []string
}

func (s *session) frame(now time.Time) frame {
	if s.routes != nil {
		f := s.routes.Frame(now, s.query)
		f.Notes = append(f.Notes, s.notes...)
		return frame{Value: f, routes: &f, at: now, answered: f.Pods, notes: f.Notes}
	}
	f := s.view.Frame(now, s.query)
	f.Notes = append(f.Notes, s.notes...)
	return frame{Value: f, services: &f, at: now, answered: f.Nodes, notes: f.Notes}
}

// connect finds the agents.
func (q *flags) connect(ctx context.Context) (*session, error) {
	agents, err := kube.ConnectAgents(q.connection, q.agents)
	if err != nil {
		return nil, err
	}
	listing, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	pods, err := agents.List(listing)
	if err != nil {
		return nil, err
	}
	pods, notes, err := q.choose(pods)
	if err != nil {
		return nil, err
	}
	s := &session{notes: notes}
	for _, p := range pods {
		s.ask = append(s.ask, p.Node)
	}
	s.view = top.New(q.interval, s.ask)
	finder := &finder{list: agents.List, all: pods, at: time.Now()}
	s.asker = newAsker(func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		p, err := finder.find(ctx, node)
		if err != nil {
			return err
		}
		return agents.Exec(ctx, p, []string{"fairway", "top-node"}, in, out)
	}, q.interval)
	return s, nil
}

// choose returns the nodes to ask, and what to say of the others.
func (q *flags) choose(pods []kube.AgentPod) (chosen []kube.AgentPod, notes []string, err error) {
	for _, n := range q.nodes {
		if !slices.ContainsFunc(pods, func(p kube.AgentPod) bool { return p.Node == n }) {
			return nil, nil, fmt.Errorf("there is no node %q [kubectl get nodes lists them]", n)
		}
	}
	for _, p := range pods {
		if len(q.nodes) == 0 || slices.Contains(q.nodes, p.Node) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, nil, errors.New("the cluster has no node [kubectl get nodes lists them]")
	}
	if more := len(chosen) - maxNodes; more > 0 {
		chosen = chosen[:maxNodes]
		notes = []string{fmt.Sprintf("%d more nodes are not asked [--node NAME,NAME chooses, at most %d]", more, maxNodes)}
	}
	return chosen, notes, nil
}

// print prints a frame at each interval, until ctx ends.
func (q *flags) print(ctx context.Context, e command.Env, s *session) error {
	ticks := time.NewTicker(q.interval)
	defer ticks.Stop()
	between, begin := "", time.Now()
	for {
		select {
		case a := <-s.asker.answers:
			s.take(a)
		case now := <-ticks.C:
			f := s.frame(now)
			if f.answered == 0 && now.Sub(begin) < answerLimit {
				continue // the nodes have not been reached yet
			}
			if _, err := io.WriteString(e.Stdout, between); err != nil {
				return err
			}
			if err := output.Write(e.Stdout, q.format, f.Value); err != nil {
				return err
			}
			between = map[output.Format]string{output.Table: "\n", output.Wide: "\n", output.YAML: "---\n"}[q.format]
		case <-ctx.Done():
			return nil
		}
	}
}

// printOnce waits until each node has answered twice or failed, and prints one frame.
func (q *flags) printOnce(ctx context.Context, e command.Env, s *session) error {
	limit := time.NewTimer(q.interval + answerLimit)
	defer limit.Stop()
	left := map[string]int{}
	for _, n := range s.ask {
		left[n] = 2
	}
	for len(left) > 0 {
		select {
		case a := <-s.asker.answers:
			s.take(a)
			if left[a.node]--; left[a.node] <= 0 || a.err != nil {
				delete(left, a.node)
			}
			continue
		case <-limit.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		break
	}
	f := s.frame(time.Now())
	if f.answered == 0 {
		return fmt.Errorf("nothing answered: %s", strings.Join(f.notes, "; "))
	}
	return output.Write(e.Stdout, q.format, f.Value)
}

// isTerminal reports whether a person is at the other end of an input or output.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
