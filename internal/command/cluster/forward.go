package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/forward"
)

// NewForward builds `fairway forward`.
func NewForward(e command.Env) *cobra.Command {
	f := forwarding{env: e}
	c := &cobra.Command{
		Use:        "forward [SERVICE[:PORT]…]",
		SuggestFor: []string{"port-forward", "kubefwd", "fwd"},
		Short:      "Serve a cluster's Services on this machine, at their names in the cluster",
		Long: `Serve a cluster's Services on this machine, at their names in the cluster.

Each Service gets a loopback address of its own, and its names (web, web.shop, web.shop.svc,
web.shop.svc.cluster.local) in /etc/hosts. A connection goes to a ready pod through the API server,
as with kubectl port-forward. It follows the Service: pods that come and go need no restart, and a
connection that has not reached its pod goes to another one. Pods of a headless Service have names of
their own. UDP is not forwarded, because the API server carries TCP only.

It needs root for /etc/hosts and for ports below 1024. With --ports it does not: it takes free ports
of 127.0.0.1 and prints them. All that it wrote goes at its end, or at the next start after a kill.

You need the right to create pods/portforward, and to list and watch Services and EndpointSlices.`,
		Example: `  sudo -E fairway forward -n shop
  fairway forward --ports svc/web:80
  sudo -E fairway forward -n shop,accounts --context staging,test`,
		RunE: func(c *cobra.Command, args []string) error { return f.run(c.Context(), args) },
	}
	flags := c.Flags()
	command.AddConnection(e, flags, &f.connection)
	flags.Lookup("context").Usage = "`names` of contexts in the kubeconfig, with commas between them (default its current one)"
	flags.StringSliceVarP(&f.namespaces, "namespace", "n", nil, "`namespaces`, with commas between them (default the context's). The first one's Services have short names")
	flags.BoolVar(&f.ports, "ports", false, "Take ports of 127.0.0.1, and write no names: needs no root")
	flags.StringVar(&f.domain, "cluster-domain", "cluster.local", "The `domain` of the cluster's names")
	flags.StringVar(&f.hosts, "hosts-file", "/etc/hosts", "The `file` for the names")
	flags.StringVarP(&f.format, "output", "o", "", "`json`: each change as a line of JSON. Default: lines, and on a terminal a table")
	command.Complete(c, "output", "json")
	return c
}

// A forwarding is one run of the command.
type forwarding struct {
	env        command.Env
	connection kube.Connection
	namespaces []string
	ports      bool
	domain     string
	hosts      string
	format     string
	out        sync.Mutex
	recent     []string // the last lines, below the table
}

// A remote is one context's cluster.
type remote struct {
	choice  forward.Choice
	follows *kube.Namespaces
	ports   *kube.PodPorts
}

func (f *forwarding) run(ctx context.Context, args []string) error {
	if f.format != "" && f.format != "json" {
		return fmt.Errorf("--output %s: there is only json [leave it out for lines, or a table on a terminal]", f.format)
	}
	remotes, err := f.remotes(ctx, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	changed := make(chan struct{}, 1)
	for i := range remotes {
		running.Go(func() { _ = remotes[i].follows.Run(ctx) })
		running.Go(func() { pass(ctx, remotes[i].follows.Dirty(), changed) })
		defer remotes[i].ports.Close()
	}
	cfg := forward.Config{Short: f.namespaces[0], Domain: f.domain, Tell: f.tell, Dial: dialer(remotes)}
	if !f.ports {
		cfg.Hosts = f.hosts
		if err := forward.WriteHosts(f.hosts, os.Getpid(), nil); err != nil { // also what a killed process left
			return err
		}
	}
	fw := forward.New(ctx, cfg)
	err = f.follow(ctx, fw, remotes, changed)
	cancel()
	if closed := fw.Close(); err == nil {
		err = closed
	}
	return err
}

// follow serves what the clusters have, until ctx ends, which is no error.
func (f *forwarding) follow(ctx context.Context, fw *forward.Forwarder, remotes []remote, changed <-chan struct{}) error {
	var tick <-chan time.Time
	if f.format == "" && isTerminal(f.env.Stdout) {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			f.draw(fw.Rows())
			continue
		case <-changed:
		}
		var targets []forward.Target
		var left []forward.Left
		for _, r := range remotes {
			r.follows.Take()
			services, endpoints := r.follows.Services()
			t, l := forward.Plan(services, endpoints, r.choice)
			targets, left = append(targets, t...), append(left, l...)
		}
		if err := fw.Set(targets, left); err != nil {
			return err
		}
	}
}

// remotes connects to the cluster of each context.
func (f *forwarding) remotes(ctx context.Context, args []string) ([]remote, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	log := slog.New(slog.NewTextHandler(f.env.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var all []remote
	for i, name := range strings.Split(f.connection.Context, ",") {
		c := f.connection
		c.Context = name
		if len(f.namespaces) == 0 {
			f.namespaces = []string{c.Namespace()}
		}
		r := remote{}
		if i > 0 {
			r.choice.Cluster = name
		}
		var err error
		if r.choice.Ports, err = chosen(args, f.namespaces[0]); err != nil {
			return nil, err
		}
		if r.ports, err = kube.ConnectPodPorts(c); err != nil {
			return nil, err
		}
		client, err := kube.Connect(c)
		if err != nil {
			return nil, err
		}
		if r.follows, err = kube.FollowNamespaces(ctx, log, client, f.namespaces); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// chosen reads the arguments: [svc/]NAME[:PORT] or NAMESPACE/NAME[:PORT].
func chosen(args []string, namespace string) (map[api.Name][]uint16, error) {
	all := map[api.Name][]uint16{}
	for _, arg := range args {
		text, number, hasPort := strings.Cut(arg, ":")
		parts := strings.Split(text, "/")
		if slices.Contains([]string{"svc", "service", "services"}, parts[0]) && len(parts) > 1 {
			parts = parts[1:]
		}
		name := api.Name{Namespace: namespace, Name: parts[len(parts)-1]}
		if len(parts) == 2 {
			name.Namespace = parts[0]
		}
		port, err := uint16(0), error(nil)
		if hasPort {
			var n uint64
			n, err = strconv.ParseUint(number, 10, 16)
			port = uint16(n)
		}
		if len(parts) > 2 || name.Name == "" || err != nil || hasPort && port == 0 {
			return nil, fmt.Errorf("%q names no Service [write NAME, svc/NAME, NAME:PORT or NAMESPACE/NAME]", arg)
		}
		if all[name] == nil {
			all[name] = []uint16{}
		}
		if hasPort {
			all[name] = append(all[name], port)
		}
	}
	return all, nil
}

// dialer opens connections in the cluster of a Backend.
func dialer(remotes []remote) forward.Dial {
	return func(ctx context.Context, b forward.Backend) (forward.PodConn, error) {
		i := slices.IndexFunc(remotes, func(r remote) bool { return r.choice.Cluster == b.Cluster })
		c, err := remotes[i].ports.Dial(ctx, b.Pod, b.Port)
		if err != nil {
			return nil, err
		}
		return c, nil
	}
}

// pass tells of changes.
func pass(ctx context.Context, from <-chan struct{}, to chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-from:
		}
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

// recentLines is how many of the last lines stand below the table.
const recentLines = 8

// tell prints an event, or keeps it for below the table.
func (f *forwarding) tell(e forward.Event) {
	f.out.Lock()
	defer f.out.Unlock()
	switch {
	case f.format == "json":
		e.WriteJSON(f.env.Stdout)
	case isTerminal(f.env.Stdout):
		f.recent = append(f.recent, e.Time.Format("15:04:05  ")+e.String())
		f.recent = f.recent[max(0, len(f.recent)-recentLines):]
	default:
		fmt.Fprintln(f.env.Stdout, e)
	}
}

// draw shows the table in place of the last one.
func (f *forwarding) draw(rows []forward.Row) {
	f.out.Lock()
	defer f.out.Unlock()
	var b strings.Builder
	b.WriteString("\x1b[H\x1b[2J") // to the first line; empty the screen
	forward.WriteTable(&b, rows)
	b.WriteString("\n" + strings.Join(f.recent, "\n") + "\n")
	_, _ = io.WriteString(f.env.Stdout, b.String())
}

// isTerminal reports whether a person reads the output now.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
